"""What the reader of Codex makes of lines, broken ones too."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from holdfast.harnesses.codex.reader import Reader
from holdfast.harnesses.codex.session import rebuild

_NUMBERS = count()


def filed(kind: str, payload: Any) -> bytes:
    return json.dumps({"timestamp": "2026-01-01T00:00:00Z", "ordinal": 1, "type": kind, "payload": payload}).encode()


def printed(**record: Any) -> bytes:
    return json.dumps(record).encode()


def item(kind: str, **fields: Any) -> bytes:
    return printed(type="item.completed", item={"id": f"item_{next(_NUMBERS)}", "type": kind, **fields})


def message(words: str) -> bytes:
    content = [{"type": "output_text", "text": words}]
    return filed("response_item", {"type": "message", "role": "assistant", "content": content})


def test_what_is_printed_and_not_filed_is_told_at_the_end() -> None:
    reader = Reader()
    reader.read(message("In both."))
    reader.read(item("agent_message", text="In both."))
    reader.read(item("agent_message", text="Printed only."))
    reader.read(printed(type="item.started", item={"id": "item_2", "type": "command_execution"}))
    reader.read(item("command_execution", command="ls", aggregated_output="a\n", exit_code=1, status="failed"))
    assert [(payload["type"], payload.get("text", payload.get("result"))) for payload in reader.close()] == [
        ("codex.assistant", "In both."),
        ("codex.assistant", "Printed only."),
        ("codex.tool", "a\n"),
    ]


@pytest.mark.parametrize("printed_first", [False, True])
def test_what_is_printed_and_filed_is_told_once(printed_first: bool) -> None:
    lines = [message("Once."), item("agent_message", text="Once.")]
    if printed_first:
        lines.reverse()
    reader = Reader()
    payloads = [payload for line in lines for payload in reader.read(line)] + reader.close()
    assert [payload["text"] for payload in payloads if payload["type"] == "codex.assistant"] == ["Once."]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1]",
        b"{}",
        b'{"type":null}',
        b'{"type":"thread.started"}',
        b'{"type":"turn.failed"}',
        b'{"type":"item.completed"}',
        b'{"type":"item.completed","item":{}}',
        b'{"type":"item.completed","item":{"type":"agent_message"}}',
        b'{"type":"error","message":7}',
        b'{"type":"error","message":"Reconnecting... "}',
        b'{"type":"response_item","payload":null}',
        b'{"type":"response_item","payload":[]}',
        filed("response_item", {"type": "function_call_output"}),
        filed("response_item", {"type": "function_call_output", "call_id": 7, "output": {"a": 1}}),
        filed("response_item", {"type": "function_call", "call_id": "c", "arguments": "{"}),
        filed("response_item", {"type": "message", "role": "user", "content": 7}),
        filed("response_item", {"type": "reasoning", "summary": 7, "content": [7]}),
        filed("token_usage_record", {"usage": "many"}),
        filed("token_usage_record", {"usage": {"input_tokens": "x", "cached_input_tokens": []}}),
        filed("event_msg", {"type": "item_completed", "item": 7}),
        filed("event_msg", {"type": "task_complete", "error": 7}),
        filed("compacted", {"message": None}),
        b'{"type":"' + b"x" * 100_000 + b'"}',
        b"[" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_a_strange_line_never_stops_the_reader(line: bytes) -> None:
    reader = Reader()
    payloads = [*reader.read(line), *reader.read(message("Still here.")), *reader.close()]
    assert reader.outcome(1)["status"] == "failed"
    assert any(payload.get("text") == "Still here." for payload in payloads)
    json.dumps(payloads, ensure_ascii=False).encode()


def test_retries_are_told_with_their_number_and_status() -> None:
    [retry] = Reader().read(
        printed(type="error", message="Reconnecting... 2/5 (unexpected status 503 Service Unavailable: x)")
    )
    assert (retry["type"], retry["attempt"], retry["status"]) == ("codex.retry", 2, 503)


@pytest.mark.parametrize("is_printed_first", [True, False])
def test_a_session_file_that_files_no_items_tells_each_command_once_and_how_it_ended(is_printed_first: bool) -> None:
    """Codex keeps the mode that a session file was begun in."""
    call = {"type": "function_call", "call_id": "c-1", "name": "exec_command", "arguments": '{"cmd": "false"}'}
    head = "Chunk ID: 1\nWall time: 0.0 seconds\nProcess exited with code 1\nOutput:\n"
    output = {"type": "function_call_output", "call_id": "c-1", "output": head + "Process exited with code 0\n"}
    item = {"id": "item_1", "type": "command_execution", "command": "/bin/bash -lc false", "status": "failed"}
    reader = Reader()
    reader.read(filed("response_item", call))
    lines = [printed(type="item.completed", item=item), filed("response_item", output)]
    payloads = [each for line in (lines if is_printed_first else lines[::-1]) for each in reader.read(line)]
    payloads += reader.close()
    assert [(each["call"], each["status"]) for each in payloads if each["type"] == "codex.tool"] == [("c-1", "error")]


def test_a_tool_that_takes_free_text_is_told_and_rebuilt_with_it() -> None:
    patch = "*** Begin Patch"
    called = {"type": "custom_tool_call", "call_id": "c-1", "name": "apply_patch", "input": patch}
    given = {"type": "custom_tool_call_output", "call_id": "c-1", "output": "Done!"}
    reader = Reader()
    payloads = reader.read(filed("response_item", called))
    payloads += reader.read(filed("token_usage_record", {"response_id": "resp_1", "usage": {"input_tokens": 5}}))
    payloads += reader.read(filed("response_item", given))
    call, answer, done = payloads
    assert call["arguments"] == done["arguments"] == patch
    assert answer["message"] == "resp_1"
    made = rebuild([{"id": "r-1", "ts": 1, "payload": payload} for payload in (answer, done)], "/workspace")
    assert made is not None
    assert [json.loads(line)["payload"] for line in made[1].splitlines()][1:] == [called, given]
    lost = rebuild([{"id": "r-1", "ts": 1, "payload": done}], "/workspace")
    assert lost is not None
    assert json.loads(lost[1].splitlines()[1])["payload"] == called
