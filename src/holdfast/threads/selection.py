"""Selects the entries of a thread that a reader wants. Most other entries are skipped without parsing them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import orjson

from holdfast.threads.entries import type_matches
from holdfast.threads.protocol.framing import as_array, parse_json, split_messages
from holdfast.threads.run_events import DELTA, FINISHED, STARTED

_ESCAPE: Final = b"\\u"
"""The only way in which JSON can escape the letters of a type."""


class Selected(NamedTuple):
    entry: dict[str, Any]
    size: int
    """In bytes."""
    end: int
    """Position after the entry."""


class Selection:
    """Entries of some types: exact ones (`chat`) or prefixes (`pi.*`). Without types, all entries."""

    def __init__(self, types: tuple[str, ...], *, live: bool) -> None:
        self._types = types
        self._live = live
        """Whether streamed text deltas are included."""
        quoted = (f'"{each[:-1]}' if each.endswith(".*") else f'"{each}"' for each in types)
        self._marks = tuple(each.encode() for each in quoted)
        """An entry of one of the types contains one of these, unless its letters are escaped."""

    def take(self, framed: bytes) -> Iterator[Selected]:
        """Yields the selected entries."""
        if not self.may_be_in(framed):
            return
        messages = split_messages(framed)
        values = iter(()) if self._marks else iter(parse_json(as_array(framed)))
        position = 0
        for message in messages:
            position += len(message) + 2
            if not self._marks:
                value = next(values)
            elif self.may_be_in(message):
                value = orjson.loads(message)
            else:
                continue
            kind = value["payload"]["type"]
            if type_matches(kind, self._types) and (self._live or not kind.endswith(DELTA)):
                yield Selected(value, len(message), position)

    def may_be_in(self, text: bytes) -> bool:
        """Returns False if no selected entry can be in this text."""
        return not self._marks or any(mark in text for mark in self._marks) or _ESCAPE in text


class Unfinished:
    """The pieces of incomplete messages: each `<agent>.delta` since the agent's last `<agent>.assistant`.

    For readers that skip the pieces of complete messages but may join in the middle of a message.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pieces: deque[tuple[int, Selected]] = deque()
        """Each piece with the number of other entries before it."""
        self._size = 0

    def add(self, index: int, piece: Selected) -> None:
        """Keep a piece. Drops the oldest pieces beyond `most_bytes`."""
        self._pieces.append((index, piece))
        self._size += piece.size
        while self._size > self._most_bytes:
            self._size -= self._pieces.popleft()[1].size

    def settle(self, kind: str) -> None:
        """Drop the pieces that an entry of this type completes or ends."""
        agent, _, event = kind.partition(".")
        if event == "assistant":
            self._keep(lambda piece: piece.entry["payload"]["type"] != agent + DELTA)
        elif kind in (STARTED, FINISHED):
            self._keep(lambda _: False)

    def _keep(self, wanted: Callable[[Selected], bool]) -> None:
        self._pieces = deque(each for each in self._pieces if wanted(each[1]))
        self._size = sum(piece.size for _, piece in self._pieces)

    def merge(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the entries with the kept pieces in their places."""
        merged: list[dict[str, Any]] = []
        done = 0
        for index, piece in self._pieces:
            merged += entries[done:index]
            merged.append(piece.entry)
            done = index
        return merged + entries[done:]
