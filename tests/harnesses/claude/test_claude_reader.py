"""What Claude Code says that a whole run against a scripted model seldom shows."""

from __future__ import annotations

import json
from typing import Any

from holdfast.harnesses.claude.reader import Reader


def read(reader: Reader, *records: dict[str, Any]) -> list[dict[str, Any]]:
    lines = (json.dumps(record, separators=(",", ":")).encode() + b"\n" for record in records)
    return [payload for line in lines for payload in reader.read(line)]


def block(*blocks: dict[str, Any], stop: str | None = None, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 1}
    message = {"id": "msg", "role": "assistant", "model": "m", "content": list(blocks), "stop_reason": stop}
    return {"type": "assistant", "message": {**message, "usage": usage}, "uuid": "u", **more}


def stream(**event: Any) -> dict[str, Any]:
    return {"type": "stream_event", "event": event, "parent_tool_use_id": None}


START = stream(type="message_start", message={"id": "msg", "model": "m", "usage": {"input_tokens": 5}})
RESULT = {"type": "result", "subtype": "success", "is_error": False, "result": "Done."}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def test_an_answer_that_was_not_streamed_is_whole_too() -> None:
    reader = Reader()
    [whole, _] = read(reader, block(text("hi"), stop="end_turn"), RESULT)
    assert (whole["text"], whole["stop"]) == ("hi", "end_turn")
    assert "partial" not in whole


def test_the_blocks_of_an_answer_become_one_message_with_its_last_usage() -> None:
    reader = Reader()
    use = {"type": "tool_use", "id": "c", "name": "Bash", "input": {"command": "ls"}}
    payloads = read(
        reader,
        START,
        block({"type": "thinking", "thinking": "hm", "signature": "s"}, uuid="1"),
        block(text("hi"), uuid="2"),
        block(use, uuid="3"),
        stream(type="message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 9}),
        stream(type="message_stop"),
    )
    [whole, call] = payloads
    assert (whole["text"], whole["thinking"], whole["stop"]) == ("hi", "hm", "tool_use")
    assert (whole["usage"]["input"], whole["usage"]["output"]) == (5, 9)
    assert [one["type"] for one in whole["record"]["message"]["content"]] == ["thinking", "text", "tool_use"]
    assert whole["record"]["uuids"] == ["1", "2", "3"]
    assert call["arguments"] == {"command": "ls"}


def test_a_result_of_a_tool_before_the_end_of_the_answer_comes_after_the_answer() -> None:
    use = {"type": "tool_use", "id": "c", "name": "Bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c", "content": [text("out")]}
    told = {"type": "user", "message": {"role": "user", "content": [result]}}
    payloads = read(Reader(), START, block(use), told)
    assert [payload["type"] for payload in payloads] == ["claude.assistant", "claude.call", "claude.tool"]


def test_results_that_come_together_are_told_one_by_one() -> None:
    results = [{"type": "tool_result", "tool_use_id": name, "content": name, "is_error": name == "b"} for name in "ab"]
    payloads = read(Reader(), {"type": "user", "message": {"role": "user", "content": results}, "uuid": "u"})
    assert [(tool["call"], tool["status"]) for tool in payloads] == [("a", "ok"), ("b", "error")]
    assert [len(tool["record"]["message"]["content"]) for tool in payloads] == [1, 1]


def test_an_error_of_the_provider_is_a_notice_and_no_answer() -> None:
    [notice] = read(Reader(), block(text("API Error: 500"), stop="stop_sequence", error="server_error"))
    assert (notice["type"], notice["level"], notice["text"]) == ("claude.notice", "error", "API Error: 500")


def test_an_answer_that_is_tried_again_is_told_as_far_as_it_came() -> None:
    reader = Reader()
    delta = stream(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "half"})
    retry = {"type": "system", "subtype": "api_retry", "attempt": 1, "error_status": None, "error": "unknown"}
    [_, partial, told] = read(reader, START, delta, retry)
    assert (partial["text"], partial["partial"]) == ("half", True)
    assert (told["type"], told["attempt"], told["message"]) == ("claude.retry", 1, "unknown")
    assert "status" not in told


def test_a_key_that_is_refused_again_and_again_ends_the_run() -> None:
    reader = Reader()
    for attempt, status in ((2, 401), (9, 500)):
        read(reader, {"type": "system", "subtype": "api_retry", "attempt": attempt, "error_status": status})
        assert not reader.ended
    read(reader, {"type": "system", "subtype": "api_retry", "attempt": 3, "error_status": 401})
    assert reader.ended
    assert reader.outcome(None)["error"]["code"] == "model_unauthorized"


def test_the_costs_of_a_model_that_it_knows_are_told() -> None:
    counts = {"inputTokens": 10, "outputTokens": 2, "cacheReadInputTokens": 3, "cacheCreationInputTokens": 4}
    usage = {"a": {**counts, "costUSD": 0.5}, "b": {**counts, "costUSD": 9.0, "costBasis": "unknown"}}
    reader = Reader()
    read(reader, {**RESULT, "model_usage_since_last_result": usage})
    assert reader.outcome(0)["usage"] == {"input": 20, "output": 4, "cacheRead": 6, "cacheWrite": 8, "cost": 0.5}


def test_what_is_new_is_kept() -> None:
    [one, two] = read(Reader(), {"type": "something_new"}, {"type": "system", "subtype": "new"})
    assert one == {"type": "claude.event", "record": {"type": "something_new"}}
    assert two["type"] == "claude.event"


def test_an_answer_to_the_abort_is_the_end() -> None:
    reader = Reader()
    assert read(reader, {"type": "control_response", "response": {"subtype": "success", "request_id": "abort"}}) == []
    assert reader.ended
