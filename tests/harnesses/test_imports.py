"""A session that a real agent wrote on this machine goes on elsewhere, and the model is told all of it, once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.harnesses.driving import Bench, entries_of, node, place_in, program_of
from tests.harnesses.test_rebuilt_twice import AGENTS, conversation, without_ids

from holdfast.api.errors.runs import InvalidRun
from holdfast.harnesses.imports import find_agent
from holdfast.harnesses.registry import find
from holdfast.testing.model import ScriptedModel, bash, text
from holdfast.testing.model.requests import Answered, Called, Said


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture(params=AGENTS)
def bench(request: pytest.FixtureRequest, model: ScriptedModel, tmp_path: Path) -> Bench:
    harness, api = AGENTS[request.param]
    return Bench(harness, model, api, place_in(tmp_path / "here", program_of(harness.name), node()))


def session_file(bench: Bench, session: str) -> bytes:
    """The file that the agent has written; for OpenCode, what it exports."""
    state = Path(bench.place.state)
    if bench.harness.name == "opencode":
        command = bench.harness.command(bench.task("x"))
        program = next(Path(bench.place.program).rglob("bin/opencode*"))
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(state), **command.env}
        done = subprocess.run(
            [str(program), "export", session],
            env=environment,
            cwd=bench.place.workspace,
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout
    files = [path for path in state.rglob("*.jsonl") if session in path.name and path.stat().st_size]
    assert len(files) == 1, sorted(state.rglob("*.jsonl"))
    return files[0].read_bytes()


def test_an_imported_session_is_told_to_the_model_once_and_in_order(bench: Bench, tmp_path: Path) -> None:
    bench.model.script(
        [bash("echo one", text="First."), bash("echo bad; exit 3", text="Second."), text("Begun."), text("Gone on.")]
    )
    first = bench.run("begin\nwith two lines")
    session = first.of("session")[-1]["session"]
    data = session_file(bench, session)
    assert find_agent(data) == bench.harness.name
    imported = bench.harness.read_session(data)
    assert imported.title == "begin"
    kinds = [payload["type"].partition(".")[2] for _, payload in imported.entries]
    assert kinds.count("user") == 1
    assert kinds.count("tool") == 2
    assert [payload["status"] for _, payload in imported.entries if payload["type"].endswith(".tool")] == [
        "ok",
        "error",
    ]
    assert all(1_600_000_000_000 < ts < 4_000_000_000_000 for ts, _ in imported.entries)

    bench.resume_elsewhere(tmp_path / "there", entries_of([payload for _, payload in imported.entries]), "go on")
    requests = [conversation(each) for each in bench.model.main_requests]
    last, before = requests[-1], requests[-2]
    assert without_ids(last)[: len(before)] == without_ids(before)
    assert [turn.text for turn in last if isinstance(turn, Said)] == [
        "begin\nwith two lines", "First.", "Second.", "Begun.", "go on",
    ]  # fmt: skip
    assert len([turn for turn in last if isinstance(turn, Called)]) == 2
    assert len([turn for turn in last if isinstance(turn, Answered)]) == 2


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no json",
        b"[]",
        b"{}",
        b'{"type":"session","version":3,"id":"x","timestamp":1,"cwd":"/"}\n',
        b'{"type":"session","cwd":"/"}\n{"type":"message","id":"a","parentId":"a","message":{"role":7}}\n',
        b'{"type":"session_meta","payload":{}}\n{"type":"response_item","payload":{"type":"message","role":"user"}}\n',
        b'{"type":"user","sessionId":"s","uuid":"u","parentUuid":"u","message":{"content":[{"type":"tool_result"}]}}\n',
        b'{"info":{},"messages":[{"info":{"role":"user","id":5},"parts":[{"type":"text"}]},7,{"info":{},"parts":[{}]}]}',
        b"[" * 100_000,
        b'{"messages":' + b"[" * 100_000,
        b"\xff\xfe\n" * 3,
    ],
)
def test_a_strange_file_is_refused_or_read_and_never_a_crash(agent: str, data: bytes) -> None:
    with suppress(InvalidRun):
        assert find(agent).read_session(data).entries


def test_a_session_of_pi_is_the_branch_that_ends_last_and_a_compaction_stands_for_what_was_before() -> None:
    def line(id: str, parent: str | None, role: str, words: str) -> str:
        content = [{"type": "text", "text": words}]
        more = (
            {"usage": {}, "stopReason": "stop", "api": "x", "provider": "x", "model": "x"}
            if role == "assistant"
            else {}
        )
        return json.dumps({"type": "message", "id": id, "parentId": parent, "timestamp": "2026-01-01T00:00:00.000Z",
                           "message": {"role": role, "content": content, "timestamp": 1, **more}})  # fmt: skip

    head = json.dumps({"type": "session", "version": 3, "id": "s", "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"})
    lines = [head, line("1", None, "user", "a"), line("2", "1", "assistant", "b"), line("3", "2", "user", "left"),
             line("4", "2", "user", "c"), line("5", "4", "assistant", "d")]  # fmt: skip
    texts = [payload.get("text") for _, payload in find("pi").read_session("\n".join(lines).encode()).entries]
    assert texts == ["a", "b", "c", "d"]
    compaction = {"type": "compaction", "id": "6", "parentId": "5", "summary": "all of it", "firstKeptEntryId": "5",
                  "tokensBefore": 9, "timestamp": "2026-01-01T00:00:01.000Z"}  # fmt: skip
    lines += [json.dumps(compaction), line("7", "6", "user", "e"), '{"type":"message","id":"8","pare']
    entries = [payload for _, payload in find("pi").read_session("\n".join(lines).encode()).entries]
    assert [payload.get("summary") or payload.get("text") for payload in entries] == ["all of it", "d", "e"]
