"""What the readers of all agents share."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.outcomes import out_of_budget
from holdfast.guest import agent_reader
from holdfast.guest.agent_reader import MAX_RECORD, MAX_RESULT, Reader, add_usage, shorten, text_of, usage_of
from holdfast.harnesses import outcomes
from holdfast.harnesses.claude.reader import Reader as ClaudeReader
from holdfast.harnesses.pi.reader import Reader as PiReader


class Plain(Reader):
    """Says of each record what the record says."""

    agent = "plain"

    def take(self, record: dict[str, Any]) -> list[dict[str, Any]]:
        if record.get("do") == "fail":
            raise KeyError("missing")
        if record.get("do") == "end":
            return self.end_call("c", record["text"], "ok", record)
        return self.event(record)

    def outcome(self, exit_code: int | None) -> dict[str, Any]:
        return outcomes.completed()


@pytest.mark.parametrize(
    "line",
    [b"not json", b"[1]", b"3", b"{", b'{"a":' + b"[" * 5000, b'{"a": 1e999, "b": ' + b"9" * 5000 + b"}", b"\xff\xfe"],
)
def test_a_line_that_is_no_record_is_shown(line: bytes) -> None:
    [payload] = Plain().read(line)
    assert payload["type"] == "plain.notice"
    assert payload["level"] == "output"
    assert len(payload["text"]) < 3000


def test_empty_lines_say_nothing() -> None:
    assert Plain().read(b"") == Plain().read(b"  \r\n") == []


def test_a_record_of_a_strange_shape_is_kept() -> None:
    [notice, event] = Plain().read(b'{"do": "fail"}')
    assert "KeyError" in notice["text"]
    assert event == {"type": "plain.event", "record": {"do": "fail"}}


def test_what_cannot_be_posted_is_made_fit() -> None:
    [event] = Plain().read(rb'{"half": "a\ud800b", "number": NaN, "\udfff": [Infinity]}' + b"\n")
    assert event["record"] == {"half": "a?b", "number": None, "?": [None]}
    [event] = Plain().read(b'{"bytes": "\xff\xfe"}')
    json.dumps(event, ensure_ascii=False).encode()


def test_a_record_that_is_too_deep_for_others_is_shown_as_it_is() -> None:
    deep = b"[" * 300 + b"]" * 300
    [payload] = Plain().read(b'{"a": ' + deep + b"}")
    assert payload["type"] == "plain.notice"


def test_a_long_result_is_shown_in_part_and_kept_whole() -> None:
    text = "first" + "ä" * MAX_RESULT + "last"
    [tool] = Plain().read(json.dumps({"do": "end", "text": text}).encode())
    assert tool["truncated"] is True
    assert tool["result"].startswith("first")
    assert tool["result"].endswith("last")
    assert len(tool["result"].encode()) < MAX_RESULT + 100
    assert tool["record"]["text"] == text


def test_a_huge_record_is_cut_and_keeps_its_shape() -> None:
    record = {"do": "end", "text": "x" * 2 * MAX_RECORD, "list": [{"inner": "y" * MAX_RECORD}] * 3, "number": 3}
    [tool] = Plain().read(json.dumps(record).encode())
    assert tool["truncated"] is True
    assert len(json.dumps(tool["record"])) < MAX_RECORD
    assert tool["record"]["number"] == 3
    assert [set(inner) for inner in tool["record"]["list"]] == [{"inner"}] * 3


def test_a_record_of_too_many_pieces_keeps_what_is_short() -> None:
    record = {"do": "other", "list": ["y" * 100] * 100_000}
    [event] = Plain().read(json.dumps(record).encode())
    assert event["record"] == {"do": "other"}


def test_a_call_takes_the_time_between_its_ends_and_is_told_once() -> None:
    now = [1.0]
    reader = Plain(lambda: now[0])
    [call] = reader.begin_call("c", "bash", {"command": "ls"})
    assert reader.begin_call("c", "bash", {"command": "ls"}) == []
    now[0] = 3.5
    [tool] = reader.end_call("c", "out", "ok")
    assert call == {"type": "plain.call", "call": "c", "name": "bash", "arguments": {"command": "ls"}}
    assert tool == {
        "type": "plain.tool",
        "call": "c",
        "name": "bash",
        "arguments": {"command": "ls"},
        "result": "out",
        "status": "ok",
        "ms": 2500,
    }


def test_what_is_open_at_the_end_is_closed() -> None:
    reader = Plain()
    reader.stream("m", text="half ")
    reader.stream("m", thinking="hm")
    reader.stream("m", text="of it")
    reader.begin_call("c", "bash", {})
    [message, tool] = reader.close()
    assert (message["text"], message["thinking"], message["partial"]) == ("half of it", "hm", True)
    assert (tool["call"], tool["status"]) == ("c", "interrupted")
    assert reader.close() == []


def test_calls_and_messages_without_end_are_bounded() -> None:
    reader = Plain()
    for number in range(5000):
        reader.begin_call(str(number), "x", None)
        reader.stream(f"m{number}", "x")
    assert len(reader.close()) <= agent_reader.MAX_OPEN_CALLS + agent_reader.MAX_OPEN_MESSAGES


def test_usage_adds_up_and_takes_nothing_but_counts() -> None:
    assert usage_of(1, 2.0, None, "7", -1) == {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0, "cost": 0}
    assert add_usage(usage_of(1, 2, 3, 4, 0.1), usage_of(1, cost=0.2))["cost"] == pytest.approx(0.3)
    reader = Plain()
    reader.end_message("a", "", usage=usage_of(1, 2))
    reader.end_message("b", "", usage=usage_of(10, 20))
    assert (reader.usage["input"], reader.usage["output"]) == (11, 22)


@given(st.text(), st.integers(min_value=8, max_value=200))
def test_a_shortened_text_is_itself_or_about_as_long_as_it_may_be(text: str, limit: int) -> None:
    short = shorten(text, limit)
    assert short == text or len(short.encode()) <= limit + 60


@pytest.mark.parametrize(
    ("message", "status"),
    [
        ("401: no", 401),
        ("Error (503), later", 503),
        ("took 999 ms", None),
        ("429", 429),
        ("line 4012", None),
        ("", None),
    ],
)
def test_a_status_is_found_in_words(message: str, status: int | None) -> None:
    assert outcomes.status_in(message) == status


def test_the_text_of_contents() -> None:
    assert text_of("plain") == "plain"
    assert text_of([{"type": "text", "text": "a"}, "b", {"type": "image"}, {"type": "x"}, 3]) == "a\nb\n[image]"
    assert text_of(None) == ""


records = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
PI = "message_start message_update message_end tool_execution_start tool_execution_end agent_end agent_settled response"
MORE_PI = "session compaction_end auto_retry_start extension_ui_request"
CLAUDE = "stream_event assistant user system result"
kinds = st.sampled_from(f"{PI} {MORE_PI} {CLAUDE}".split())
likely = st.fixed_dictionaries(
    {"type": kinds},
    optional={
        "message": st.dictionaries(
            st.sampled_from(["role", "content", "id", "usage", "stopReason"]),
            records | st.sampled_from(["user", "assistant", "toolResult"]),
        ),
        "event": st.dictionaries(st.sampled_from(["type", "delta", "message", "usage"]), records),
        "result": records,
        "data": records,
        "subtype": st.sampled_from(["init", "api_retry", "compact_boundary", "status"]),
        "model_usage_since_last_result": records,
        "toolCallId": records,
        "toolName": records,
        "command": st.sampled_from(["get_state", "prompt", "abort"]),
        "success": records,
    },
)


@pytest.mark.parametrize("kind", [PiReader, ClaudeReader])
@given(lines=st.lists(likely | records, max_size=12), exit_code=st.none() | st.integers(-64, 255))
def test_nothing_that_an_agent_prints_breaks_its_reader(
    kind: type[Reader], lines: list[Any], exit_code: int | None
) -> None:
    reader = kind()
    payloads = [payload for line in lines for payload in reader.read(json.dumps(line).encode())]
    payloads += reader.close()
    json.dumps([*payloads, reader.outcome(exit_code)], ensure_ascii=False, allow_nan=False).encode()


def test_it_imports_little_for_it_does_so_at_every_start_of_an_agent() -> None:
    folder = Path(agent_reader.__file__).parent
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import agent_reader; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert "agent_reader" in ran.stdout.split()
    assert not {"dataclasses", "typing", "inspect", "asyncio", "pathlib"} & set(ran.stdout.split())


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (None, "Prompt is too long", "context_exceeded"),
        (400, "prompt is too long: 250000 tokens > 200000 maximum", "context_exceeded"),
        (400, "This model's maximum context length is 128000 tokens.", "context_exceeded"),
        (413, "too much", "context_exceeded"),
        (401, "the context window of your key", "model_unauthorized"),
        (400, "no such parameter", "model_refused"),
        (None, "cut", "model_error"),
        (502, "bad gateway", "model_unavailable"),
        (502, "API Error: 502 Holdfast: api.example.com cannot be reached: no connection", "model_unreachable"),
    ],
)
def test_a_request_that_is_longer_than_the_context_is_told_from_others(
    status: int | None, message: str, code: str
) -> None:
    error = outcomes.model_error(status, message)
    assert error["code"] == code
    assert ("the provider failed" in error["hint"]) is (code == "model_unavailable")


_REFUSAL = "Holdfast: this day is out of budget: $8.0400 of $3.0000 are spent"


@pytest.mark.parametrize(
    "said",
    [
        f'402 {{"type":"error","error":{{"type":"billing_error","message":"{_REFUSAL}","code":"budget"}}}}',
        f"API Error: 402 {_REFUSAL}",
        f"unexpected status 402 Payment Required: {_REFUSAL}, url: http://127.0.0.1:3128/model/v1/responses",
        _REFUSAL,
    ],
    ids=["pi", "claude", "codex", "opencode"],
)
def test_what_an_agent_repeats_of_our_gateway_is_shown_without_json(said: str) -> None:
    reader = agent_reader.Reader()
    assert reader.notice("error", said)[0]["text"] == _REFUSAL
    assert reader.retry(1, said, 402)[0]["message"] == _REFUSAL
    assert reader.notice("output", said)[0]["text"] == said
    error = outcomes.model_error(402, said)
    assert (error["code"], error["message"]) == ("over_budget", _REFUSAL)
    assert "holdfast budget set --day" in error["hint"]


@pytest.mark.parametrize(
    ("scope", "command"),
    [
        ("run", "holdfast resume THREAD --budget"),
        ("thread", "holdfast budget set THREAD --cost"),
        ("tree", "holdfast budget set ROOT --tree"),
        ("day", "holdfast budget set --day"),
    ],
)
def test_the_hint_is_for_the_budget_that_is_used_up(scope: str, command: str) -> None:
    error = outcomes.model_error(402, "Holdfast: " + out_of_budget(scope, "$2.00", "$1.00"))
    assert command in error["hint"]
    assert sum(each in error["hint"] for each in ("--day", "--tree", "THREAD --budget", "THREAD --cost")) == 1
