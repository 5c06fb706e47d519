"""The entries that a session is made again of."""

from __future__ import annotations

from typing import Any

from holdfast.runs.launch.sessions import SessionTranscript


def entry(ident: str, kind: str, **fields: Any) -> dict[str, Any]:
    return {"id": ident, "ts": 1, "payload": {"type": kind, **fields}}


def heard(*entries: dict[str, Any], agent: str = "pi", channel: str = "") -> list[str]:
    taking = SessionTranscript(agent, without="r-now", channel=channel)
    given = [one for each in entries for one in taking.take(each)]
    return [f"{one['payload']['type']} {one['payload'].get('text', '')}".strip() for one in given]


PROMPT = entry("c-1", "chat", role="user", text="do it")
STARTED = entry("start-r-1", "signal.run.started", run="r-1", agent="pi", prompts=["c-1"])
FINISHED = entry("end-r-1", "signal.run.finished", run="r-1")
USER = entry("r-1-2", "pi.user", text="do it, now")
ANSWER = entry("r-1-3", "pi.assistant", text="done")
SESSION = entry("r-1-1", "pi.session", session="s")


def test_a_prompt_that_the_agent_repeated_is_told_once_and_in_its_words() -> None:
    assert heard(PROMPT, STARTED, SESSION, USER, ANSWER, FINISHED) == [
        "pi.session",
        "pi.user do it, now",
        "pi.assistant done",
    ]


def test_a_prompt_that_it_never_came_to_repeat_is_told() -> None:
    assert heard(PROMPT, STARTED, FINISHED) == ["pi.user do it"]
    assert heard(PROMPT, STARTED, SESSION, FINISHED) == ["pi.session", "pi.user do it"]
    assert heard(PROMPT, STARTED, ANSWER, FINISHED) == ["pi.user do it", "pi.assistant done"]


def test_a_prompt_that_waits_for_another_run_is_not_told_twice() -> None:
    again = entry("end-r-1", "signal.run.finished", run="r-1", by="reconciler", again=True)
    assert heard(PROMPT, STARTED, again) == []
    second = entry("start-r-2", "signal.run.started", run="r-2", agent="pi", prompts=["c-1"])
    assert heard(PROMPT, STARTED, again, second, USER, ANSWER) == ["pi.user do it, now", "pi.assistant done"]
    forged = entry("end-r-1", "signal.run.finished", run="r-1", by="runner", again=True)
    assert heard(PROMPT, STARTED, forged) == ["pi.user do it"]


def test_prompts_that_waited_together_are_one() -> None:
    second = entry("c-2", "chat", role="user", text="and that")
    both = entry("start-r-1", "signal.run.started", run="r-1", agent="pi", prompts=["c-1", "c-2"])
    assert heard(PROMPT, second, both, FINISHED) == ["pi.user do it\n\nand that"]


def test_the_prompt_of_the_run_to_come_and_those_of_other_agents_are_not() -> None:
    now = entry("start-r-now", "signal.run.started", run="r-now", agent="pi", prompts=["c-1"])
    other = entry("start-r-2", "signal.run.started", run="r-2", agent="codex", prompts=["c-1"])
    theirs = entry("r-2-1", "codex.assistant", text="theirs")
    assert heard(PROMPT, other, theirs, FINISHED, now) == []


def test_live_words_are_left_out() -> None:
    assert heard(PROMPT, STARTED, entry("r-1-1", "pi.delta", message="m", text="do")) == []


def test_a_channel_of_a_session_has_its_own_conversation() -> None:
    there = entry("c-2", "chat", role="user", text="in the chat")
    begun = entry("start-r-2", "signal.run.started", run="r-2", agent="pi", prompts=["c-2"], channel="slack:C1")
    answer = entry("r-2-1", "pi.assistant", text="to the chat")
    thread = (
        PROMPT,
        there,
        STARTED,
        USER,
        ANSWER,
        FINISHED,
        begun,
        answer,
        entry("e", "signal.run.finished", run="r-2"),
    )
    assert heard(*thread) == ["pi.user do it, now", "pi.assistant done"]
    assert heard(*thread, channel="slack:C1") == ["pi.user in the chat", "pi.assistant to the chat"]
    assert heard(*thread, channel="slack:C2") == []
