"""Entries: the records on a thread, `{id, ts, authorId?, payload{type, …}}`. The `id` is the deduplication key."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

from holdfast.api.errors.threads import InvalidEntry
from holdfast.api.ids import new_entry_id
from holdfast.api.thread.entries import Entry
from holdfast.calendar_time import LAST
from holdfast.threads.protocol.framing import SEPARATOR, Messages, parse_messages, parse_slices
from holdfast.threads.store import Keyed

_FIELDS: Final = frozenset({"id", "ts", "authorId", "payload"})
_is_type: Final = functools.lru_cache(1024)(re.compile(r"[a-z][a-z0-9_-]*(\.[a-z0-9_-]+)*").fullmatch)
"""Cached because a server sees few types, and the same ones again and again."""
_MAX_ID: Final = 128
_AROUND: Final = 20
"""How many levels there can be around an entry where it is stored or sent. orjson writes 254 in all."""


Admit = Callable[[dict[str, Any]], Keyed | None]
"""Checks a submitted entry. Raises to refuse it. Returns the message to append instead, or None to append it as it is.
"""


def keyed_entries(body: bytes, now: int, admit: Admit | None = None) -> tuple[Keyed, ...]:
    """Returns the entries of a request body, ready to append. Entries without an id or a time get one."""
    return _keyed_messages(parse_messages(body), now, admit)


def keyed_slices(body: bytes, now: int, admit: Admit | None = None) -> Iterator[tuple[Keyed, ...]]:
    """Like `keyed_entries`, but yields the entries of a large body one slice at a time."""
    for messages in parse_slices(body):
        yield _keyed_messages(messages, now, admit)


def _keyed_messages(messages: Messages, now: int, admit: Admit | None) -> tuple[Keyed, ...]:
    values, texts = messages
    if len(values) == 1:
        return (_keyed(values[0], texts[0], now, admit),)
    return tuple(_keyed(value, text, now, admit) for value, text in zip(values, texts, strict=True))


def keyed(entry: Entry) -> Keyed:
    return Keyed(entry.id, orjson.dumps(entry.to_json()) + SEPARATOR)


def _keyed(value: Any, message: bytes, now: int, admit: Admit | None) -> Keyed:
    check_entry(value)
    if admit is not None and (instead := admit(value)) is not None:
        return instead
    key = value.get("id")
    if key is not None and "ts" in value:
        return Keyed(key, message + SEPARATOR)
    missing: dict[str, Any] = {}
    if key is None:
        missing["id"] = new_entry_id()
    if "ts" not in value:
        missing["ts"] = now
    # Insert the missing fields after the opening brace, so the rest of the entry keeps its original text. It is never
    # empty: every entry has a payload.
    message = orjson.dumps(missing)[:-1] + b"," + message[1:]
    return Keyed(key or missing["id"], message + SEPARATOR, fresh=key is None)


def check_entry(value: Any) -> None:
    """Raises `InvalidEntry` with the reason if a value is not a valid entry."""
    if not isinstance(value, dict):
        raise InvalidEntry(f"an entry must be an object with id, ts and payload, not {_kind(value)}")
    if not _FIELDS.issuperset(value):
        raise InvalidEntry(f"an entry has no field {min(value.keys() - _FIELDS)!r}; put it in the payload")
    payload = value.get("payload")
    if not isinstance(payload, dict):
        raise InvalidEntry(f"an entry needs a payload object, not {_kind(payload)}")
    kind = payload.get("type")
    if not isinstance(kind, str) or len(kind) > _MAX_ID or not _is_type(kind):
        raise InvalidEntry(f"payload.type must be like chat, pi.assistant or signal.thread.created, not {kind!r}")
    if "id" in value and not _is_id(value["id"]):
        raise InvalidEntry(f"an entry id must be 1 to {_MAX_ID} printable characters, not {value['id']!r}")
    if "ts" in value and (type(value["ts"]) is not int or not 0 <= value["ts"] <= LAST):
        raise InvalidEntry(
            f"an entry's ts must be a time in UTC milliseconds before the year 10000, not {value['ts']!r}"
        )
    if value.get("authorId") is not None and not _is_id(value["authorId"]):
        raise InvalidEntry(f"authorId must be 1 to {_MAX_ID} printable characters, not {value['authorId']!r}")


def check_storable(entry: Entry) -> None:
    """Raises `InvalidEntry` for what Python reads from JSON and `keyed` does not write: large integers, halves of
    characters, too many values within values.
    """
    value: Any = entry.to_json()
    for _ in range(_AROUND):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError as error:
        raise InvalidEntry(f"the entry cannot be stored: {error}") from None


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_ID and value.isprintable()


def _kind(value: object) -> str:
    names = {
        type(None): "null",
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
    }
    return names.get(type(value), "that")


def type_matches(kind: str, patterns: tuple[str, ...]) -> bool:
    """Whether a payload type matches a pattern: an exact type, or a prefix such as `pi.*`. Without patterns, all types
    match.
    """
    if not patterns:
        return True
    return any(kind == pattern or (pattern.endswith(".*") and kind.startswith(pattern[:-1])) for pattern in patterns)
