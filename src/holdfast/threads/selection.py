"""Which entries of a thread a reader wants. Most of what it does not want is passed over without being parsed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import orjson

from holdfast.threads.entries import type_matches
from holdfast.threads.framing import as_array, parse_json, split_messages
from holdfast.threads.runs import DELTA

_ESCAPE: Final = b"\\u"
"""The letters of a type are never escaped but so."""


class Selected(NamedTuple):
    entry: dict[str, Any]
    size: int
    """In bytes."""
    end: int
    """Position after it."""


class Selection:
    """Entries of some types: exact ones (`chat`) or prefixes (`pi.*`); of every type where none is given."""

    def __init__(self, types: tuple[str, ...], *, live: bool) -> None:
        self._types = types
        self._live = live
        """With text that came in pieces, too."""
        quoted = (f'"{each[:-1]}' if each.endswith(".*") else f'"{each}"' for each in types)
        self._marks = tuple(each.encode() for each in quoted)
        """An entry of one of the types has one of these in its text, unless letters of it are escaped."""

    def take(self, framed: bytes) -> Iterator[Selected]:
        """The entries that are wanted."""
        if not self._may_be_in(framed):
            return
        messages = split_messages(framed)
        values = iter(()) if self._marks else iter(parse_json(as_array(framed)))
        position = 0
        for message in messages:
            position += len(message) + 2
            if not self._marks:
                value = next(values)
            elif self._may_be_in(message):
                value = orjson.loads(message)
            else:
                continue
            kind = value["payload"]["type"]
            if type_matches(kind, self._types) and (self._live or not kind.endswith(DELTA)):
                yield Selected(value, len(message), position)

    def _may_be_in(self, text: bytes) -> bool:
        return not self._marks or any(mark in text for mark in self._marks) or _ESCAPE in text
