"""Which entries of a thread a reader wants. Most of what it does not want is passed over without being parsed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import orjson

from holdfast.threads.entries import type_matches
from holdfast.threads.protocol.framing import as_array, parse_json, split_messages
from holdfast.threads.run_events import DELTA, FINISHED, STARTED

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


class Unfinished:
    """The pieces of messages that are not whole yet: each `<agent>.delta` since the agent's last `<agent>.assistant`.

    For readers that want no pieces of whole messages, and join in the middle of one.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pieces: deque[tuple[int, Selected]] = deque()
        """Each with the number of other entries before it."""
        self._size = 0

    def add(self, index: int, piece: Selected) -> None:
        """Keep a piece; of a message without end the newest ones."""
        self._pieces.append((index, piece))
        self._size += piece.size
        while self._size > self._most_bytes:
            self._size -= self._pieces.popleft()[1].size

    def settle(self, kind: str) -> None:
        """Forget what an entry of this type makes whole, or ends."""
        agent, _, event = kind.partition(".")
        if event == "assistant":
            self._keep(lambda piece: piece.entry["payload"]["type"] != agent + DELTA)
        elif kind in (STARTED, FINISHED):
            self._keep(lambda _: False)

    def _keep(self, wanted: Callable[[Selected], bool]) -> None:
        self._pieces = deque(each for each in self._pieces if wanted(each[1]))
        self._size = sum(piece.size for _, piece in self._pieces)

    def merge(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The entries with the pieces, each in its place."""
        merged: list[dict[str, Any]] = []
        done = 0
        for index, piece in self._pieces:
            merged += entries[done:index]
            merged.append(piece.entry)
            done = index
        return merged + entries[done:]
