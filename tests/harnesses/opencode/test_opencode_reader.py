"""What the reader of OpenCode makes of events, broken ones too."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from holdfast.harnesses.opencode.driver import _Turn
from holdfast.harnesses.opencode.reader import Reader

_ANSWER = {"id": "msg_2", "role": "assistant", "parentID": "msg_1", "time": {"created": 1}}


def event(kind: str, **about: Any) -> bytes:
    return json.dumps({"type": kind, "properties": about}).encode()


def part(kind: str, ident: str = "prt_1", **fields: Any) -> bytes:
    return event("message.part.updated", part={"id": ident, "messageID": "msg_2", "type": kind, **fields})


def running(call: str, ident: str, status: str = "running", **state: Any) -> bytes:
    state = {"status": status, "input": {"command": "ls"}, **state}
    return part("tool", ident, callID=call, tool="bash", state=state)


def read(*lines: bytes) -> list[dict[str, Any]]:
    reader = Reader()
    return [payload for line in lines for payload in reader.read(line)] + reader.close()


def kinds(payloads: list[dict[str, Any]]) -> list[str]:
    return [payload["type"].partition(".")[2] for payload in payloads if not payload["type"].endswith(".delta")]


def test_what_is_said_after_a_call_in_the_same_message_is_an_entry_of_its_own() -> None:
    payloads = read(
        event("message.updated", info=_ANSWER),
        part("text", "prt_1", text="Before."),
        running("c-1", "prt_2"),
        running("c-1", "prt_2", "completed", output="out"),
        part("text", "prt_3", text=""),
        event("message.part.delta", messageID="msg_2", partID="prt_3", field="text", delta="After."),
        event("message.updated", info={**_ANSWER, "time": {"created": 1, "completed": 2}, "finish": "stop"}),
    )
    assert kinds(payloads) == ["assistant", "call", "tool", "assistant"]
    first, _, _, delta, second = payloads
    assert (first["message"], first["text"], first["calls"][0]["id"]) == ("msg_2", "Before.", "c-1")
    assert (second["message"], second["text"]) == (delta["message"], "After.")
    assert [found["id"] for found in second["record"]["parts"]] == ["prt_3"]


def test_calls_beside_each_other_are_each_told_once_however_often_they_are_updated() -> None:
    payloads = read(
        event("message.updated", info=_ANSWER),
        running("c-1", "prt_1"),
        running("c-2", "prt_2"),
        running("c-2", "prt_2", "completed", output="two"),
        running("c-2", "prt_2", "completed", output="two"),
        running("c-1", "prt_1", "error", error="Tool execution aborted"),
    )
    assert kinds(payloads) == ["assistant", "call", "event", "call", "tool", "tool"]
    assert [payload["status"] for payload in payloads if payload["type"] == "opencode.tool"] == ["ok", "interrupted"]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1]",
        b"{}",
        b'{"type":"message.updated"}',
        b'{"type":"message.updated","properties":[]}',
        event("message.updated", info={}),
        event("message.updated", info={"id": 7, "role": "assistant", "time": 7}),
        event("message.updated", info={**_ANSWER, "time": {"completed": 1}, "tokens": 7}),
        event("message.part.updated", part={}),
        part("tool"),
        part("tool", callID="c", tool="x", state=None),
        part("tool", callID="c", tool="x", state={"status": "completed", "metadata": 7}),
        part("text", text=7),
        event("message.part.delta"),
        event("session.status", status={}),
        event("session.status", status={"type": "retry", "attempt": "x"}),
        event("session.error", error=None),
        event("session.error", error={"name": 7, "data": []}),
        event("holdfast.session", info={}),
        event("holdfast.exited"),
        b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_a_strange_line_never_stops_the_reader(line: bytes) -> None:
    reader = Reader()
    payloads = reader.read(event("message.updated", info=_ANSWER)) + reader.read(line)
    other = {**_ANSWER, "id": "msg_3"}
    payloads += reader.read(event("message.updated", info=other))
    text = {"id": "prt_9", "messageID": "msg_3", "type": "text", "text": "Still here."}
    payloads += reader.read(event("message.part.updated", part=text)) + reader.close()
    assert reader.outcome(1)["status"] == "failed"
    assert any(payload.get("text") == "Still here." for payload in payloads)
    json.dumps(payloads, ensure_ascii=False).encode()


def test_an_answer_that_is_told_as_whole_before_its_parts_are_is_read_with_them(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    # OpenCode tells how a message stands when it comes to tell it, which on a busy machine is late.
    info = {"id": "msg_1", "role": "assistant", "sessionID": "ses_1", "time": {"created": 9e15, "completed": 9e15 + 1}}
    text = {"id": "prt_1", "messageID": "msg_1", "type": "text", "text": "All of it."}
    turn = _Turn(cast(Any, None), "ses_1", {}, 0)
    for kind, about in (
        ("message.updated", {"info": info}),
        ("message.part.updated", {"part": text}),
        ("message.updated", {"info": info}),
    ):
        assert not turn._take(json.dumps({"type": kind, "properties": {"sessionID": "ses_1", **about}}).encode())
    assert turn._take(b'{"type": "session.idle", "properties": {"sessionID": "ses_1"}}')
    reader = Reader()
    told = [each for line in capsysbinary.readouterr().out.splitlines() for each in reader.read(line)]
    assert [(each["type"], each["text"]) for each in told] == [("opencode.assistant", "All of it.")]
