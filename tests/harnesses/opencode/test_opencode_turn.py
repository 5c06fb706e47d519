"""A turn over a server of OpenCode, by its events and by a clock: when it ends, how, and that it ends once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.guest.hub_messages import EXPIRED
from holdfast.harnesses.opencode.host import _question, _reply, merged
from holdfast.harnesses.opencode.supervision import HEALTHY, MOST_CRASHES, Crashes
from holdfast.harnesses.opencode.turn import ABORT, FIRST_RESPONSE, INACTIVITY, MOST_RETRIES, Turn

SESSION = "ses_1"


class Bench:
    def __init__(self, **more: Any) -> None:
        self.now = 1000.0
        self.wall = 1_700_000_000.0
        self.entries: list[dict[str, Any]] = []
        self.turn = Turn(
            "r-1",
            2,
            "web:default",
            keep=lambda entry: self.entries.append(json.loads(entry)),
            clock=lambda: self.now,
            wall=lambda: self.wall,
            **more,
        )

    def begin(self) -> Bench:
        self.turn.begin({"id": SESSION, "version": "1"})
        self.turn.sent()
        return self

    def event(self, type: str, **about: Any) -> None:
        self.turn.take(json.dumps({"type": type, "properties": {"sessionID": SESSION, **about}}).encode())

    def answer(self, text: str, *, complete: bool = True) -> None:
        created = {"created": self.wall * 1000}
        info = {"id": "msg_1", "role": "assistant", "time": created, "modelID": "m"}
        part = {"id": "prt_1", "messageID": "msg_1", "type": "text", "text": ""}
        self.event("message.updated", info=info)
        self.event("message.part.updated", part=part)
        self.event("message.part.delta", messageID="msg_1", partID="prt_1", field="text", delta=text)
        if complete:
            self.event("message.part.updated", part={**part, "text": text})
            self.event("message.updated", info={**info, "time": {**created, "completed": 1}, "finish": "stop"})

    def tool(self, status: str) -> None:
        state = {"status": status, "input": {}, "output": ""}
        part = {"id": "prt_2", "messageID": "msg_1", "type": "tool", "tool": "bash", "callID": "c", "state": state}
        self.event("message.part.updated", part=part)

    def pass_time(self, seconds: float) -> bool:
        """Returns whether the server has to be told to abort."""
        self.now += seconds
        return self.turn.check()

    @property
    def end(self) -> dict[str, Any]:
        assert self.turn.is_done
        self.turn.end()
        self.turn.end()  # a second end writes nothing
        self.event("session.idle")
        ends = [each for each in self.entries if each["payload"]["type"] == "signal.run.finished"]
        assert [each["id"] for each in ends] == ["end-r-1"]
        payload: dict[str, Any] = ends[0]["payload"]
        return payload


def test_a_turn_ends_when_the_session_is_idle_and_its_messages_are_complete() -> None:
    bench = Bench().begin()
    bench.answer("Hello.")
    assert not bench.turn.is_done
    bench.event("session.idle")
    assert bench.end["status"] == "completed"
    texts = [each["payload"]["text"] for each in bench.entries if each["payload"]["type"] == "opencode.assistant"]
    assert texts == ["Hello."]


def test_events_of_another_session_change_nothing() -> None:
    bench = Bench().begin()
    bench.turn.take(json.dumps({"type": "session.idle", "properties": {"sessionID": "ses_2"}}).encode())
    assert not bench.turn.is_done


def test_a_clock_that_is_set_changes_no_limit() -> None:
    bench = Bench().begin()
    for jump in (10_000_000.0, -20_000_000.0):
        bench.wall += jump
        assert not bench.pass_time(1.0)


def test_a_model_that_gives_no_sign_of_an_answer_is_given_up() -> None:
    bench = Bench().begin()
    assert not bench.pass_time(FIRST_RESPONSE - 1)
    assert bench.pass_time(2)
    assert not bench.pass_time(1), "told once"
    bench.pass_time(ABORT)
    assert bench.end["error"]["code"] == "no_response"


def test_silence_ends_a_turn_but_not_while_a_tool_runs_or_a_question_is_open() -> None:
    bench = Bench().begin()
    bench.answer("I will run it.", complete=False)
    bench.tool("running")
    assert not bench.pass_time(10 * INACTIVITY)
    bench.tool("completed")
    bench.turn.asked.add("que_1")
    assert not bench.pass_time(10 * INACTIVITY)
    bench.turn.asked.clear()
    assert not bench.pass_time(INACTIVITY - 1)
    assert bench.pass_time(2)
    bench.pass_time(ABORT)
    assert bench.end["error"]["code"] == "inactive"


def test_retries_without_output_are_given_up_and_output_counts_again() -> None:
    def fail(attempt: int) -> bool:
        bench.event("session.status", status={"type": "retry", "attempt": attempt, "message": "429 too many requests"})
        return bench.turn.wants_abort

    bench = Bench().begin()
    assert not any(fail(each + 1) for each in range(MOST_RETRIES))
    bench.answer("Some words", complete=False)
    assert not any(fail(each + 1) for each in range(MOST_RETRIES))
    assert fail(9)
    assert not fail(10), "told once"
    bench.event("session.idle")
    bench.pass_time(ABORT)
    assert (bench.end["status"], bench.end["error"]["code"]) == ("failed", "model_rate_limited")


def test_a_turn_that_somebody_ends_is_cancelled_whatever_else_happens() -> None:
    bench = Bench().begin()
    bench.answer("Never fin", complete=False)
    assert bench.turn.cancel()
    assert not bench.turn.cancel()
    bench.event("session.error", error={"name": "MessageAbortedError"})
    bench.pass_time(ABORT)
    assert bench.end["status"] == "cancelled"
    [partial] = [each["payload"] for each in bench.entries if each["payload"]["type"] == "opencode.assistant"]
    assert (partial["text"], partial["partial"]) == ("Never fin", True)


def test_a_turn_has_the_timeout_of_its_run() -> None:
    bench = Bench(timeout=10.0).begin()
    assert not bench.pass_time(9)
    assert bench.pass_time(2)
    bench.pass_time(ABORT)
    assert bench.end["error"]["code"] == "timed_out"


def test_a_server_that_exits_ends_the_turn_as_failed_once() -> None:
    bench = Bench().begin()
    bench.answer("Half a", complete=False)
    bench.turn.lose(-9)
    bench.turn.end()
    [end] = [each["payload"] for each in bench.entries if each["payload"]["type"] == "signal.run.finished"]
    assert end["status"] == "failed"


def test_crashes_are_paused_longer_each_time_and_given_up_after_five() -> None:
    crashes = Crashes()
    assert [crashes.add(1.0) for _ in range(MOST_CRASHES)] == [2.0, 4.0, 8.0, 16.0, None]
    crashes = Crashes()
    assert [crashes.add(HEALTHY) for _ in range(20)] == [2.0] * 20


def test_only_what_the_hub_wants_is_added_to_the_configuration() -> None:
    base = {"permission": {"*": "allow"}, "enabled_providers": ["holdfast"], "provider": {"holdfast": {}}}
    provider = {
        "providerId": "mine",
        "displayName": "Mine",
        "baseUrl": "http://127.0.0.1:3128/model/v1",
        "models": [{"id": "m"}],
    }
    made = merged(base, {"tools": {"bash": False}, "instructions": ["AGENTS.md"], "customProviders": [provider]})
    assert list(made["permission"].items()) == [("*", "allow"), ("bash", "deny")]
    assert made["instructions"] == ["AGENTS.md"]
    assert made["enabled_providers"] == ["holdfast", "mine"]
    assert made["provider"]["mine"]["options"] == {"baseURL": "http://127.0.0.1:3128/model/v1"}
    assert merged(base, {}) == base


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ("once", "once"),
        ("always", "always"),
        (True, "once"),
        (False, "reject"),
        (EXPIRED, "reject"),
        ("sure", "reject"),
    ],
)
def test_a_permission_is_given_only_by_a_clear_answer(answer: Any, reply: str) -> None:
    told = _question("per_1", "permission.asked", {"permission": "bash", "patterns": ["rm -rf /"]})
    assert told["text"] == "May it use bash: rm -rf /?"
    path, body = _reply("per_1", {"kind": told["kind"], "count": 1}, answer)
    assert (path, body["reply"]) == ("/permission/per_1/reply", reply)
