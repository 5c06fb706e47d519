"""A session that is made again, goes on, and is made again: each real agent tells the model what happened, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.harnesses.driving import Bench, Driven, node, place_in, program_of

from holdfast.harnesses.claude import Claude
from holdfast.harnesses.codex import Codex
from holdfast.harnesses.harness import Api, Harness
from holdfast.harnesses.opencode import OpenCode
from holdfast.harnesses.pi import Pi
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.model.requests import Answered, Called, Request, Said, Turn

AGENTS: dict[str, tuple[Harness, Api]] = {
    "pi": (Pi(), Api.OPENAI_CHAT),
    "opencode": (OpenCode(), Api.OPENAI_CHAT),
    "codex": (Codex(retries=1), Api.OPENAI_RESPONSES),
    "claude": (Claude(), Api.ANTHROPIC),
}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture(params=AGENTS)
def bench(request: pytest.FixtureRequest, model: ScriptedModel, tmp_path: Path) -> Bench:
    harness, api = AGENTS[request.param]
    place = place_in(tmp_path / "here", program_of(harness.name), node())
    return Bench(harness, model, api, place)


def conversation(request: Request) -> list[Turn]:
    """What the user, the model and the tools said, without what the agent says about the box."""
    return [
        turn
        for turn in request.turns
        if not (isinstance(turn, Said) and (turn.role == "system" or turn.text.startswith("<")))
    ]


def without_ids(turns: list[Turn]) -> list[Turn]:
    """The calls of a request numbered in their order: agents may give calls new ids."""
    order: dict[str, str] = {}
    found: list[Turn] = []
    for turn in turns:
        if isinstance(turn, Called | Answered):
            turn = replace(turn, call=order.setdefault(turn.call, f"call {len(order)}"))
        found.append(turn)
    return found


def calls(agent: Driven) -> list[tuple[str, str]]:
    """The commands that a run told, and how each ended."""
    assert agent.outcome["status"] == "completed", agent.said()
    return [
        (str(tool["arguments"].get("cmd") or tool["arguments"]["command"]), tool["status"]) for tool in agent.of("tool")
    ]


def test_what_a_rebuilt_session_did_is_on_the_thread_once_and_told_to_the_model_once(
    bench: Bench, tmp_path: Path
) -> None:
    bench.model.script(
        [
            bash("echo one", text="First."),
            bash("echo bad; exit 3", text="Second."),
            text("Begun."),
            bash("echo two; exit 4", text="Third."),
            bash("echo three", text="Fourth."),
            text("Gone on."),
            bash("echo four; exit 5", text="Fifth."),
            text("Gone on again."),
            text("Over."),
        ]
    )
    first = bench.run("begin")
    assert calls(first) == [("echo one", "ok"), ("echo bad; exit 3", "error")]
    entries: list[dict[str, Any]] = first.entries("r-1")
    second = bench.resume_elsewhere(tmp_path / "there", entries, "go on")
    assert calls(second) == [("echo two; exit 4", "error"), ("echo three", "ok")]
    assert [call["text"] for call in second.of("assistant")] == ["Third.", "Fourth.", "Gone on."]
    entries += second.entries("r-2")
    third = bench.resume_elsewhere(tmp_path / "yonder", entries, "and on")
    assert calls(third) == [("echo four; exit 5", "error")]
    entries += third.entries("r-3")
    bench.resume_elsewhere(tmp_path / "far", entries, "end")

    requests = [conversation(each) for each in bench.model.main_requests]
    assert len(requests) == 9
    # Each request is the one before it, what the model answered to that, and what came of the answer.
    for before, after in pairwise(requests):
        assert without_ids(after)[: len(before)] == without_ids(before)
    last = requests[-1]
    assert [turn.text for turn in last if isinstance(turn, Said)] == [
        *("begin", "First.", "Second.", "Begun."),
        *("go on", "Third.", "Fourth.", "Gone on."),
        *("and on", "Fifth.", "Gone on again."),
        "end",
    ]
    assert len([turn for turn in last if isinstance(turn, Called)]) == 5
    assert len([turn for turn in last if isinstance(turn, Answered)]) == 5
