"""pi's session file, made again from entries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.harnesses.pi.session import rebuild

KEPT = 20_000
Entry = dict[str, Any]


def entries_of(*payloads: dict[str, Any]) -> list[Entry]:
    return [{"id": f"r-{n}", "ts": 1_700_000_000_000 + n, "payload": payload} for n, payload in enumerate(payloads)]


def user(text: str) -> dict[str, Any]:
    return {"type": "pi.user", "text": text, "record": {"role": "user", "content": text, "timestamp": 1}}


def assistant(*blocks: dict[str, Any], stop: str = "stop") -> dict[str, Any]:
    record = {
        "role": "assistant",
        "content": list(blocks),
        "api": "a",
        "provider": "p",
        "model": "m",
        "usage": {"totalTokens": 1},
        "stopReason": stop,
        "timestamp": 2,
    }
    return {"type": "pi.assistant", "message": "m", "text": "", "calls": [], "record": record}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def call(ident: str) -> dict[str, Any]:
    return {"type": "toolCall", "id": ident, "name": "bash", "arguments": {"command": "ls"}}


def tool(ident: str, text: str = "out", **more: Any) -> dict[str, Any]:
    record = {"role": "toolResult", "toolCallId": ident, "toolName": "bash", "content": [words(text)], "isError": False}
    payload = {"type": "pi.tool", "call": ident, "name": "bash", "arguments": {}, "result": text, "status": "ok"}
    return {**payload, "record": record, **more}


def rebuilt(*payloads: dict[str, Any], kept: int = KEPT) -> list[dict[str, Any]]:
    made = rebuild(entries_of(*payloads), "/workspace", kept)
    assert made is not None
    session, data = made
    lines = [json.loads(line) for line in data.splitlines()]
    assert lines[0]["id"] == session
    assert lines[0]["cwd"] == "/workspace"
    assert [line["parentId"] for line in lines[1:]] == [None, *(line["id"] for line in lines[1:-1])]
    return lines[1:]


def test_nothing_to_go_on_with_makes_no_session() -> None:
    assert rebuild([], "/workspace", KEPT) is None
    system = {"type": "pi.event", "record": {"role": "system", "content": ""}}
    assert rebuild(entries_of({"type": "pi.session", "session": "x"}, system), "/workspace", KEPT) is None


def test_messages_are_written_as_they_were_recorded() -> None:
    payloads = [user("hi"), assistant(words("a"), call("c"), stop="toolUse"), tool("c"), assistant(words("b"))]
    lines = rebuilt(*payloads)
    assert [line["type"] for line in lines] == ["message"] * 4
    assert lines[0]["message"] == payloads[0]["record"]
    assert lines[1]["message"] == payloads[1]["record"]
    assert lines[2]["message"]["content"] == [words("out")]
    assert isinstance(lines[2]["message"]["timestamp"], int)


def test_a_result_that_was_changed_on_its_way_to_the_model_replaces_the_first() -> None:
    changed = {**tool("c", "changed")["record"], "timestamp": 9}
    lines = rebuilt(user("hi"), assistant(call("c")), tool("c"), {"type": "pi.event", "record": changed}, user("on"))
    assert [line["message"]["role"] for line in lines] == ["user", "assistant", "toolResult", "user"]
    assert lines[2]["message"]["content"] == [words("changed")]


def test_a_model_may_give_its_calls_the_same_id_in_each_answer() -> None:
    turns = [assistant(call("call_0")), tool("call_0", "one"), assistant(call("call_0")), tool("call_0", "two")]
    lines = rebuilt(user("hi"), *turns)
    assert [line["message"]["content"] for line in lines[2::2]] == [[words("one")], [words("two")]]


def test_an_answer_that_was_gathered_from_live_words_is_an_aborted_one() -> None:
    gathered = {"type": "pi.assistant", "message": "m", "text": "half", "calls": [], "partial": True}
    lines = rebuilt(user("hi"), gathered)
    assert lines[1]["message"]["stopReason"] == "aborted"
    assert lines[1]["message"]["content"] == [words("half")]


def test_a_call_left_open_stays_open_for_pi_to_close() -> None:
    interrupted = {
        "type": "pi.tool",
        "call": "c",
        "name": "bash",
        "arguments": {},
        "result": "",
        "status": "interrupted",
    }
    lines = rebuilt(user("hi"), assistant(call("c"), stop="toolUse"), interrupted)
    assert [line["message"]["role"] for line in lines] == ["user", "assistant"]


def test_after_a_compaction_only_its_summary_and_what_it_kept_are_there() -> None:
    compaction = {"type": "pi.compaction", "summary": "SUM", "record": {"result": {"tokensBefore": 7}}}
    long = "x" * 400
    lines = rebuilt(
        user("old"), assistant(words(long)), user("kept"), assistant(words(long)), compaction, user("new"), kept=100
    )
    assert [line["type"] for line in lines] == ["message", "compaction", "message"]
    assert lines[0]["message"]["role"] == "assistant"
    assert lines[1]["summary"] == "SUM"
    assert lines[1]["firstKeptEntryId"] == lines[0]["id"]
    assert lines[2]["message"]["content"] == "new"


def test_the_results_that_a_compaction_kept_keep_their_call() -> None:
    compaction = {"type": "pi.compaction", "summary": "SUM"}
    lines = rebuilt(user("old"), assistant(call("c")), tool("c", "x" * 4000), compaction, kept=100)
    assert [line.get("message", {}).get("role") for line in lines] == ["assistant", "toolResult", None]


def test_a_compaction_that_kept_nothing_names_itself() -> None:
    lines = rebuilt({"type": "pi.compaction", "summary": "SUM"}, user("new"))
    assert lines[0]["firstKeptEntryId"] == lines[0]["id"]


def test_each_history_has_an_id_of_its_own_and_the_same_one_the_same() -> None:
    one = rebuild(entries_of(user("a")), "/workspace", KEPT)
    two = rebuild(entries_of(user("a"), user("b")), "/workspace", KEPT)
    assert one is not None
    assert two is not None
    assert one[0] != two[0]
    assert rebuild(entries_of(user("a")), "/workspace", KEPT) == one


def test_a_long_thread_is_rebuilt_whole() -> None:
    turn = [user("go on " * 10), assistant(words("word " * 50), call("c"), stop="toolUse"), tool("c", "line\n" * 100)]
    assert len(rebuilt(*(turn * 1_000))) == 3_000


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "id"]), inner),
    max_leaves=6,
)
roles = st.sampled_from(["user", "assistant", "toolResult", "system", "other"]) | values
strange = st.fixed_dictionaries(
    {"type": st.sampled_from([f"pi.{kind}" for kind in ("user", "assistant", "tool", "compaction", "event", "x")])},
    optional={
        "record": values | st.dictionaries(st.sampled_from(["role", "content", "toolCallId", "result"]), roles),
        "text": values,
        "summary": values,
        "status": values,
        "call": values,
    },
)


@pytest.mark.parametrize("kept", [0, 3])
@given(payloads=st.lists(strange, max_size=8))
def test_no_entry_of_a_box_breaks_it(kept: int, payloads: list[dict[str, Any]]) -> None:
    made = rebuild(entries_of(*payloads), "/workspace", kept)
    for line in made[1].splitlines() if made is not None else ():
        json.loads(line)
