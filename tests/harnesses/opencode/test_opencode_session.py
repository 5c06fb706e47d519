"""Sessions of OpenCode, made again from entries."""

from __future__ import annotations

import json
from typing import Any

from holdfast.harnesses.opencode.session import rebuild


def entry(number: int, kind: str, **payload: Any) -> dict[str, Any]:
    payload["type"] = f"opencode.{kind}"
    return {"id": f"r-{number}", "ts": 1_700_000_000_000 + number, "payload": payload}


def ident(prefix: str, number: int) -> str:
    return f"{prefix}{number:012x}abcdefghijklmn"


def message(number: int, role: str = "assistant", **fields: Any) -> dict[str, Any]:
    info = {"id": ident("msg_", number), "role": role, "sessionID": "ses_old", "time": {"created": number}, **fields}
    words = {"id": ident("prt_", number), "type": "text", "text": f"words {number}", "messageID": info["id"]}
    return {"info": info, "parts": [words]}


def said(number: int, role: str = "assistant") -> dict[str, Any]:
    kind = "user" if role == "user" else "assistant"
    return entry(number, kind, message="m", text=f"words {number}", record=message(number, role))


def tool(number: int, of: int) -> dict[str, Any]:
    state = {"status": "completed", "input": {}, "output": "x" * 100, "title": "", "metadata": {}, "time": {}}
    record = {"id": ident("prt_", number), "type": "tool", "callID": f"c-{number}", "tool": "bash", "state": state}
    record["messageID"] = ident("msg_", of)
    return entry(number, "tool", call=f"c-{number}", name="bash", result="x", status="ok", record=record)


def made_of(entries: list[dict[str, Any]]) -> dict[str, Any]:
    made = rebuild(entries, "/workspace", "holdfast", "m")
    assert made is not None
    session: dict[str, Any] = json.loads(made[1])
    assert session["info"]["id"] == made[0]
    return session


def test_a_long_thread_is_rebuilt_whole() -> None:
    entries = []
    for number in range(0, 3_000, 2):
        entries += [said(number), tool(number + 1, number)]
    assert sum(part["type"] == "tool" for each in made_of(entries)["messages"] for part in each["parts"]) == 1_500


def test_nothing_to_go_on_with_is_no_session() -> None:
    assert rebuild([], "/workspace", "holdfast", "m") is None
    assert rebuild([entry(1, "session", session="s", record={})], "/workspace", "holdfast", "m") is None


def test_all_ids_are_new_and_keep_their_order_and_what_they_point_to() -> None:
    answer = said(2)
    answer["payload"]["record"]["info"]["parentID"] = ident("msg_", 1)
    old = [said(1, "user"), answer, tool(3, 2)]
    first, second = made_of(old)["messages"]
    assert first["info"]["id"] != ident("msg_", 1)
    assert first["info"]["id"] < second["info"]["id"]
    assert second["info"]["parentID"] == first["info"]["id"]
    assert [part["type"] for part in second["parts"]] == ["text", "tool"]
    assert {part["messageID"] for part in second["parts"]} == {second["info"]["id"]}
    assert {part["sessionID"] for part in second["parts"]} == {second["info"]["sessionID"]}
    assert made_of(old) == made_of(old)
    assert made_of([*old, said(5)])["info"]["id"] != made_of(old)["info"]["id"]


def test_what_lost_its_record_is_kept_as_words() -> None:
    lost = [
        entry(1, "user", text="begin"),
        entry(2, "assistant", message="x", text="half of", partial=True),
        entry(3, "tool", call="c", name="bash", arguments={"command": "ls"}, result="out", status="ok"),
        entry(4, "tool", call="d", name="bash", arguments={}, result="", status="interrupted"),
    ]
    user, answer, tool_message = made_of(lost)["messages"]
    assert user["parts"][0]["text"] == "begin"
    assert answer["parts"][0]["text"] == "half of"
    assert answer["info"]["parentID"] == user["info"]["id"]
    assert tool_message["parts"][0]["state"]["output"] == "out"


def test_all_before_a_compaction_is_left_out_but_what_opencode_kept() -> None:
    asked, summary = message(4, "user"), message(5, summary=True, parentID=ident("msg_", 4))
    asked["parts"][0] = {"id": ident("prt_", 4), "type": "compaction", "tail_start_id": ident("msg_", 3)}
    compaction = entry(5, "compaction", summary="words 5", record={"messages": [asked, summary]})
    messages = made_of([said(1, "user"), said(2), said(3, "user"), compaction, said(6)])["messages"]
    assert [each["parts"][0].get("text") for each in messages] == ["words 3", None, "words 5", "words 6"]
    assert messages[1]["parts"][0]["tail_start_id"] == messages[0]["info"]["id"]


def test_a_compaction_that_lost_its_record_is_kept_as_words() -> None:
    compaction = entry(2, "compaction", summary="SUMMARY")
    messages = made_of([said(1, "user"), compaction])["messages"]
    assert [each["parts"][0]["text"] for each in messages] == ["SUMMARY"]
