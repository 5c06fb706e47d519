"""What a box says about its programs, which programs in the box can change: it is bounded, and decides nothing."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.api.session.sessions import SessionStep, StepState
from holdfast.sessions.programs import PROGRAMS
from holdfast.sessions.workstation import parse_status

NAMES = [each.name for each in PROGRAMS]


def status(**about: Any) -> dict[str, Any]:
    return {"generation": "p-1", "programs": [{"name": "editor", "state": "running", **about}]}


def editor(said: object) -> SessionStep:
    steps = parse_status(said, "p-1", "/workspace")
    assert [each.name for each in steps] == NAMES
    return steps[NAMES.index("editor")]


def test_a_program_is_shown_as_its_box_describes_it() -> None:
    said = status(since=5, restarts=2, ms=70, detail="fine", output="one\ntwo\n")
    assert editor(said) == SessionStep(
        name="editor",
        title="Editor",
        state=StepState.RUNNING,
        since=5,
        restarts=2,
        ms=70,
        detail="fine",
        output="one\ntwo",
        path="/vscode/?folder=/workspace",
    )


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "text",
        {},
        {"generation": "p-1"},
        {"generation": "p-1", "programs": "all"},
        {"generation": "p-1", "programs": [None, 1, [], {"name": 1}, {"state": "running"}]},
        {"generation": "p-0", "programs": status()["programs"]},  # of another life of the box
        status(state="done"),
        status(state=["running"]),
        status(state="owned"),
    ],
)
def test_what_is_not_understood_is_a_program_that_starts(said: object) -> None:
    assert editor(said) == SessionStep(name="editor", title="Editor", state=StepState.STARTING)


def test_texts_and_numbers_of_a_box_are_bounded() -> None:
    found = editor(
        status(
            since=-1,
            restarts=1 << 70,
            ms=True,
            detail="a\u202eb\n" + "x" * 100_000,
            output="\x1b[2J" + "line\n" * 100_000,
        )
    )
    assert (found.since, found.restarts, found.ms) == (None, 0, None)
    assert len(found.detail) <= 500
    assert len(found.output) <= 4096
    assert found.output.count("\n") < 20


def test_hidden_and_controlling_characters_are_shown() -> None:
    found = editor(status(detail="a\u202eb", output="\x1b[2Jc\rd"))
    assert found.detail == "a⟨202E⟩b"
    assert "\x1b" not in found.output
    assert "\r" not in found.output


def test_only_a_program_that_runs_has_a_page() -> None:
    assert [each.path for each in parse_status(status(state="blocked"), "p-1", "/w")] == [None] * len(NAMES)
    assert editor(status()).path == "/vscode/?folder=/workspace"


def test_many_programs_that_nobody_asked_for_are_not_shown() -> None:
    many = [{"name": f"more-{number}", "state": "running"} for number in range(10_000)]
    assert editor({"generation": "p-1", "programs": many}).state is StepState.STARTING
