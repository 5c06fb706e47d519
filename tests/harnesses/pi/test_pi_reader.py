"""What pi says that a whole run against a scripted model seldom shows."""

from __future__ import annotations

import json
from typing import Any

from holdfast.harnesses.pi.reader import Reader


def read(reader: Reader, *records: dict[str, Any]) -> list[dict[str, Any]]:
    lines = (json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)
    return [payload for line in lines for payload in reader.read(line)]


def answer(stop: str, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": list(blocks), "model": "m", "stopReason": stop, **more}
    return {"type": "message_end", "message": message}


SETTLED = {"type": "agent_settled"}


def test_a_prompt_that_it_does_not_take_ends_the_run() -> None:
    reader = Reader()
    [notice] = read(reader, {"type": "response", "command": "prompt", "success": False, "error": "no model"})
    assert notice["level"] == "error"
    assert reader.ended
    assert reader.outcome(0)["error"] == {
        "code": "prompt_refused",
        "message": "no model",
        "hint": "see the output of the agent: holdfast thread show THREAD",
    }


def test_it_is_not_done_before_it_has_settled() -> None:
    reader = Reader()
    text = {"type": "text", "text": "hi"}
    read(reader, answer("stop", text), {"type": "agent_end", "messages": [], "willRetry": True})
    assert not reader.ended
    assert reader.outcome(-9)["status"] == "failed"
    read(reader, {"type": "agent_start"}, answer("stop", text), {"type": "agent_end", "willRetry": False})
    assert reader.outcome(-9)["status"] == "completed"
    assert not reader.ended
    read(reader, SETTLED)
    assert reader.ended


def test_an_error_without_an_answer_is_a_notice_with_the_record() -> None:
    reader = Reader()
    [notice] = read(reader, answer("error", errorMessage="503: busy"), SETTLED)
    assert (notice["type"], notice["text"]) == ("pi.notice", "503: busy")
    assert notice["record"]["role"] == "assistant"
    assert reader.outcome(0)["error"]["code"] == "model_unavailable"


def test_costs_are_added_up_those_of_compactions_too() -> None:
    reader = Reader()
    usage = {"input": 10, "output": 2, "cacheRead": 3, "cacheWrite": 4, "cost": {"total": 0.25}}
    result = {"summary": "SUM", "firstKeptEntryId": "x", "usage": usage}
    [whole, compaction] = read(
        reader,
        answer("stop", {"type": "text", "text": "hi"}, usage=usage),
        {"type": "compaction_end", "reason": "threshold", "result": result, "aborted": False},
    )
    assert whole["usage"]["cost"] == 0.25
    assert compaction["summary"] == "SUM"
    read(reader, SETTLED)
    assert reader.outcome(0)["usage"] == {"input": 20, "output": 4, "cacheRead": 6, "cacheWrite": 8, "cost": 0.5}


def test_a_compaction_that_failed_is_a_warning() -> None:
    [notice] = read(Reader(), {"type": "compaction_end", "aborted": False, "errorMessage": "no room"})
    assert (notice["level"], notice["text"]) == ("warning", "the compaction failed: no room")


def test_what_repeats_other_events_is_left_out_and_what_is_new_is_kept() -> None:
    repeated: list[dict[str, Any]] = [
        {"type": "turn_end", "message": {}},
        {"type": "tool_execution_update", "toolCallId": "c"},
    ]
    assert read(Reader(), *repeated, {"type": "queue_update"}) == []
    [event] = read(Reader(), {"type": "something_new", "a": 1})
    assert event == {"type": "pi.event", "record": {"type": "something_new", "a": 1}}


def test_what_extensions_say_is_told() -> None:
    shown = {"type": "extension_ui_request", "id": "1", "method": "notify", "message": "hello"}
    status = {"type": "extension_ui_request", "id": "2", "method": "setStatus", "statusText": "x"}
    asked = {"type": "extension_ui_request", "id": "3", "method": "confirm", "title": "sure?"}
    broken = {"type": "extension_error", "extensionPath": "/e.ts", "error": "oops"}
    payloads = read(Reader(), shown, status, asked, broken)
    assert [payload["type"] for payload in payloads] == ["pi.notice", "pi.event", "pi.notice"]


def test_a_result_that_is_changed_before_the_model_gets_it_is_told_again_as_a_record() -> None:
    reader = Reader()
    end = {"type": "tool_execution_end", "toolCallId": "c", "toolName": "bash", "isError": False}
    message = {"role": "toolResult", "toolCallId": "c", "toolName": "bash", "isError": False}
    [tool, event] = read(
        reader,
        {**end, "result": {"content": [{"type": "text", "text": "secret"}]}},
        {"type": "message_end", "message": {**message, "content": [{"type": "text", "text": "hidden"}]}},
    )
    assert (tool["type"], tool["result"]) == ("pi.tool", "secret")
    assert (event["type"], event["record"]["content"][0]["text"]) == ("pi.event", "hidden")


def test_the_header_of_the_json_mode_is_a_session_too() -> None:
    reader = Reader()
    [session] = read(reader, {"type": "session", "version": 3, "id": "s-1", "cwd": "/"})
    assert session["session"] == reader.session == "s-1"
