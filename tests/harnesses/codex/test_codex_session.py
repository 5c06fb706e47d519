"""Session files of Codex, made again from entries."""

from __future__ import annotations

import json
from typing import Any

from holdfast.harnesses.codex.session import rebuild


def entry(number: int, kind: str, **payload: Any) -> dict[str, Any]:
    payload["type"] = f"codex.{kind}"
    return {"id": f"r-{number}", "ts": 1_700_000_000_000 + number, "payload": payload}


def answer(number: int, call: str = "") -> dict[str, Any]:
    content = [{"type": "output_text", "text": f"answer {number}"}]
    items: list[dict[str, Any]] = [{"type": "message", "role": "assistant", "content": content}]
    if call:
        items.append({"type": "function_call", "call_id": call, "name": "exec_command", "arguments": '{"cmd":"ls"}'})
    return entry(number, "assistant", message=f"m-{number}", text=f"answer {number}", record={"items": items})


def result(number: int, call: str) -> dict[str, Any]:
    record = {"type": "function_call_output", "call_id": call, "output": "x" * 100}
    return entry(number, "tool", call=call, name="exec_command", arguments={}, result="x", status="ok", record=record)


def lines_of(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made = rebuild(entries, "/workspace")
    assert made is not None
    return [json.loads(line) for line in made[1].splitlines()]


def test_a_long_thread_is_rebuilt_whole() -> None:
    entries = []
    for number in range(0, 3_000, 2):
        entries += [answer(number, f"c-{number}"), result(number + 1, f"c-{number}")]
    assert len(lines_of(entries)) == 4_501


def test_nothing_to_go_on_with_is_no_session() -> None:
    assert rebuild([], "/workspace") is None
    assert rebuild([entry(1, "session", session="s")], "/workspace") is None


def test_the_same_entries_give_the_same_session_and_more_entries_another() -> None:
    assert rebuild([answer(1)], "/w") == rebuild([answer(1)], "/w")
    one, two = rebuild([answer(1)], "/w"), rebuild([answer(1), answer(2)], "/w")
    assert one is not None
    assert two is not None
    assert one[0] != two[0]


def test_a_result_whose_call_was_lost_gets_its_call_back() -> None:
    _, call, given = lines_of([result(1, "c-1")])
    assert call["payload"]["type"] == "function_call"
    assert call["payload"]["call_id"] == given["payload"]["call_id"] == "c-1"


def test_words_without_a_record_are_kept_as_a_message() -> None:
    partial = entry(1, "assistant", message="m", text="half of", partial=True)
    assert lines_of([partial])[1]["payload"]["content"] == [{"type": "output_text", "text": "half of"}]


def test_an_interrupted_call_is_left_to_codex() -> None:
    open_call = entry(2, "tool", call="c", name="exec_command", arguments={}, result="", status="interrupted")
    assert [line["payload"].get("type") for line in lines_of([answer(1, "c"), open_call])] == [
        None,
        "message",
        "function_call",
    ]


def test_all_before_a_compaction_is_left_out() -> None:
    compaction = entry(2, "compaction", summary="SUMMARY", record={"message": "SUMMARY", "replacement_history": 7})
    meta, compacted, after = lines_of([answer(1), compaction, answer(3)])
    assert meta["type"] == "session_meta"
    assert compacted["type"] == "compacted"
    assert "SUMMARY" in json.dumps(compacted["payload"]["replacement_history"])
    assert "answer 3" in json.dumps(after)
