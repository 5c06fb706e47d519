"""What fault trials write: messages that can be told apart and checked byte by byte, in each form a stream can have."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, Protocol

import orjson

_RECORD: Final = re.compile(rb"(\S+) (\d+) (\d+)\n")

Length = Callable[[Random], int]
"""Chooses how much padding a message gets, in bytes."""


def mixed_length(random: Random) -> int:
    """Mostly small, some over a database page, a few over many."""
    kind = random.random()
    if kind < 0.85:
        return random.randint(0, 300)
    return random.randint(4_000, 9_000) if kind < 0.96 else random.randint(60_000, 150_000)


def large_length(random: Random) -> int:
    """For filling a disk soon, but not with the first message."""
    return random.randint(100, 30_000)


class Shape(Protocol):
    """How messages of one kind of stream are made, sent and read back."""

    content_type: str

    def message(self, writer: str, number: int, random: Random) -> bytes:
        """A message that nobody else makes."""
        ...

    def body(self, messages: Sequence[bytes]) -> bytes:
        """One request with these messages."""
        ...

    def split(self, pages: Sequence[bytes]) -> list[bytes]:
        """The messages of a stream that was read in these pages, each as `message` made it if nothing went wrong."""
        ...


class JsonShape:
    """Any JSON."""

    content_type = "application/json"

    def __init__(self, length: Length = mixed_length) -> None:
        self._length = length

    def message(self, writer: str, number: int, random: Random) -> bytes:
        return orjson.dumps({"writer": writer, "number": number, "padding": _padding(random, self._length)})

    def body(self, messages: Sequence[bytes]) -> bytes:
        return b"[" + b",".join(messages) + b"]"

    def split(self, pages: Sequence[bytes]) -> list[bytes]:
        return [orjson.dumps(value) for page in pages for value in orjson.loads(page)]


class EntryShape(JsonShape):
    """Entries of a thread, known by their ids. Times and the thread's own signals are the server's, and left out."""

    def message(self, writer: str, number: int, random: Random) -> bytes:
        return entry_message(f"{writer}-{number}", {"type": "fault.written", "text": _padding(random, self._length)})

    def split(self, pages: Sequence[bytes]) -> list[bytes]:
        entries: list[dict[str, Any]] = [entry for page in pages for entry in orjson.loads(page)]
        return [
            entry_message(entry["id"], entry["payload"])
            for entry in entries
            if not entry["payload"]["type"].startswith("signal.")
        ]


def entry_message(id: str, payload: dict[str, Any]) -> bytes:
    return orjson.dumps({"id": id, "payload": payload})


class BytesShape:
    """Records of any bytes, each behind a line with its writer, number and length."""

    content_type = "application/octet-stream"

    def __init__(self, length: Length = mixed_length) -> None:
        self._length = length

    def message(self, writer: str, number: int, random: Random) -> bytes:
        padding = random.randbytes(self._length(random))
        return b"%s %d %d\n%s" % (writer.encode(), number, len(padding), padding)

    def body(self, messages: Sequence[bytes]) -> bytes:
        return b"".join(messages)

    def split(self, pages: Sequence[bytes]) -> list[bytes]:
        data = b"".join(pages)
        messages, position = [], 0
        while position < len(data):
            head = _RECORD.match(data, position)
            end = head.end() + int(head[3]) if head else len(data)
            messages.append(data[position:end])
            position = end
        return messages


def _padding(random: Random, length: Length) -> str:
    return random.randbytes(length(random) // 2).hex()
