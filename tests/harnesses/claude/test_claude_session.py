"""Claude Code's session file, made again from entries."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.harnesses.claude.session import rebuild

Entry = dict[str, Any]


def entries_of(*payloads: dict[str, Any]) -> list[Entry]:
    return [{"id": f"r-{n}", "ts": 1_700_000_000_000 + n, "payload": payload} for n, payload in enumerate(payloads)]


def record_of(role: str, content: Any, ident: str) -> dict[str, Any]:
    message = {"role": role, "content": content}
    return {"type": role, "message": message, "uuid": ident, "timestamp": "2026-01-01T00:00:00.000Z"}


def user(text: str, ident: str = "u") -> dict[str, Any]:
    return {"type": "claude.user", "text": text, "record": record_of("user", text, ident)}


def assistant(*blocks: dict[str, Any], ident: str = "a") -> dict[str, Any]:
    record = {**record_of("assistant", list(blocks), ident), "uuids": [f"{ident}-1", ident]}
    return {"type": "claude.assistant", "message": "m", "text": "", "calls": [], "record": record}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def tool(call: str, text: str = "out", ident: str = "t") -> dict[str, Any]:
    block = {"type": "tool_result", "tool_use_id": call, "content": text}
    record = {**record_of("user", [block], ident), "tool_use_result": {"stdout": text}}
    payload = {"type": "claude.tool", "call": call, "name": "Bash", "result": text, "status": "ok"}
    return {**payload, "record": record}


def rebuilt(*payloads: dict[str, Any]) -> list[dict[str, Any]]:
    made = rebuild(entries_of(*payloads), "/workspace")
    assert made is not None
    session, data = made
    lines = [json.loads(line) for line in data.splitlines()]
    assert {line["sessionId"] for line in lines} == {session}
    assert [line["parentUuid"] for line in lines] == [None, *(line["uuid"] for line in lines[:-1])]
    assert all(line["timestamp"] for line in lines)
    return lines


def test_nothing_to_go_on_with_makes_no_session() -> None:
    assert rebuild([], "/workspace") is None
    assert rebuild(entries_of({"type": "claude.session", "session": "x"}), "/workspace") is None


def test_messages_are_written_as_they_were_recorded() -> None:
    use = {"type": "tool_use", "id": "c", "name": "Bash", "input": {}}
    payloads = [user("hi", "1"), assistant(words("a"), use, ident="2"), tool("c", ident="3"), assistant(words("b"))]
    lines = rebuilt(*payloads)
    assert [line["type"] for line in lines] == ["user", "assistant", "user", "assistant"]
    assert [line["message"] for line in lines] == [payload["record"]["message"] for payload in payloads]
    assert lines[2]["toolUseResult"] == {"stdout": "out"}
    assert all("uuids" not in line for line in lines)


def test_what_has_no_record_is_made_of_what_people_see() -> None:
    told = {"type": "claude.tool", "call": "c", "name": "Bash", "result": "out", "status": "error"}
    lines = rebuilt({"type": "claude.user", "text": "hi"}, told)
    assert lines[0]["message"] == {"role": "user", "content": "hi"}
    assert lines[1]["message"]["content"][0]["is_error"] is True
    assert len({line["uuid"] for line in lines}) == 2


def test_a_call_left_open_stays_open_for_the_agent_to_close() -> None:
    interrupted = {"type": "claude.tool", "call": "c", "name": "Bash", "result": "", "status": "interrupted"}
    lines = rebuilt(user("hi"), assistant({"type": "tool_use", "id": "c", "name": "Bash", "input": {}}), interrupted)
    assert [line["type"] for line in lines] == ["user", "assistant"]


def test_after_a_compaction_its_summary_comes_first_and_then_what_it_kept() -> None:
    boundary = {"compact_metadata": {"preserved_messages": {"uuids": ["2-1", "3"]}}}
    compaction = {"type": "claude.compaction", "summary": "SUM", "record": {"boundary": boundary}}
    lines = rebuilt(
        user("old", "1"), assistant(words("kept"), ident="2"), tool("c", ident="3"), compaction, user("new")
    )
    assert lines[0]["message"]["content"] == "SUM"
    assert lines[0]["isCompactSummary"] is True
    assert [line["uuid"] for line in lines[1:]] == ["2", "3", "u"]


def test_a_long_thread_is_rebuilt_whole() -> None:
    use = {"type": "tool_use", "id": "c", "name": "Bash", "input": {"command": "ls"}}
    turn = [user("go on " * 10), assistant(words("word " * 50), use), tool("c", "line\n" * 100)]
    assert len(rebuilt(*(turn * 1_000))) == 3_000


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "content", "uuids"]), inner),
    max_leaves=6,
)
strange = st.fixed_dictionaries(
    {"type": st.sampled_from([f"claude.{kind}" for kind in ("user", "assistant", "tool", "compaction", "event")])},
    optional={
        "record": values
        | st.dictionaries(
            st.sampled_from(["message", "uuid", "uuids", "timestamp", "boundary"]),
            values | st.dictionaries(st.sampled_from(["content", "compact_metadata"]), values),
        ),
        "text": values,
        "summary": values,
        "status": values,
        "call": values,
    },
)


@given(payloads=st.lists(strange, max_size=8))
def test_no_entry_of_a_box_breaks_it(payloads: list[dict[str, Any]]) -> None:
    made = rebuild(entries_of(*payloads), "/workspace")
    for line in made[1].splitlines() if made is not None else ():
        json.loads(line)
