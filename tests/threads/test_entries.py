"""What may stand on a thread, and what is refused with a reason."""

from __future__ import annotations

import orjson
import pytest

from holdfast.api.errors.threads import InvalidEntry
from holdfast.api.thread.entries import Entry
from holdfast.threads.entries import keyed, keyed_entries, type_matches


def test_an_entry_is_kept_as_it_was_written() -> None:
    body = b'{"id": "e-1", "ts": 5, "payload": {"type": "chat", "n": 12345678901234567890123}}'
    (entry,) = keyed_entries(body, now=9)
    assert (entry.key, entry.data) == ("e-1", body + b",\n")


def test_what_is_missing_is_filled_in() -> None:
    (entry,) = keyed_entries(b'{"payload":{"type":"chat","text":"hi"}}', now=9)
    value = orjson.loads(entry.data[:-2])
    assert value == {"id": entry.key, "ts": 9, "payload": {"type": "chat", "text": "hi"}}
    assert entry.key.startswith("e-")


def test_entries_come_one_or_many() -> None:
    assert [
        each.key for each in keyed_entries(b'[{"id":"a","payload":{"type":"x"}},{"id":"b","payload":{"type":"x"}}]', 1)
    ] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"1", "object"),
        (b"[[]]", "object"),
        (b"{}", "payload"),
        (b'{"payload":null}', "payload"),
        (b'{"payload":{}}', "payload.type"),
        (b'{"payload":{"type":"Chat"}}', "payload.type"),
        (b'{"payload":{"type":"a..b"}}', "payload.type"),
        (b'{"payload":{"type":"chat"},"text":"x"}', "'text'"),
        (b'{"id":"","payload":{"type":"chat"}}', "id"),
        (b'{"id":5,"payload":{"type":"chat"}}', "id"),
        (b'{"id":"a\\u0000b","payload":{"type":"chat"}}', "id"),
        (b'{"ts":"now","payload":{"type":"chat"}}', "ts"),
        (b'{"ts":true,"payload":{"type":"chat"}}', "ts"),
        (b'{"ts":-1,"payload":{"type":"chat"}}', "ts"),
        (b'{"ts":253402300800000,"payload":{"type":"chat"}}', "before the year 10000"),
        (b'{"authorId":{},"payload":{"type":"chat"}}', "authorId"),
        (b'{"id":"' + b"x" * 129 + b'","payload":{"type":"chat"}}', "id"),
    ],
)
def test_what_is_no_entry_is_refused_with_the_reason(body: bytes, why: str) -> None:
    with pytest.raises(InvalidEntry, match=why):
        keyed_entries(body, now=1)


def test_entries_go_to_json_and_back() -> None:
    entry = Entry("e-1", 5, {"type": "pi.assistant", "text": "é"}, "u-1")
    assert Entry.from_json(entry.to_json()) == entry
    assert Entry.from_json(orjson.loads(keyed(entry).data[:-2])) == entry


@pytest.mark.parametrize(
    ("kind", "patterns", "matches"),
    [
        ("chat", (), True),
        ("chat", ("chat",), True),
        ("chatter", ("chat",), False),
        ("pi.assistant", ("chat", "pi.*"), True),
        ("pi", ("pi.*",), False),
        ("pipe.x", ("pi.*",), False),
    ],
)
def test_types_match_exactly_or_by_prefix(kind: str, patterns: tuple[str, ...], matches: bool) -> None:
    assert type_matches(kind, patterns) is matches
