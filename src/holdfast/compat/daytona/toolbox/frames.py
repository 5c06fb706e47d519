"""Reads what our programs in a box write: frames, each a line of JSON and as many bytes as its `n` says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.process import Process

_MAX_HEAD: Final = 65_536
_PIECE: Final = 1 << 20


class BrokenFrames(Exception):
    """Something in the box wrote over our frames. What follows cannot be read."""


@dataclass(frozen=True, slots=True)
class Frame:
    command: str
    kind: str
    data: bytes
    head: dict[str, Any]
    offset: int
    """Where it begins in the output of its process."""
    end: int


class Parser:
    """Frames from bytes that arrive in pieces."""

    def __init__(self, offset: int = 0) -> None:
        self._buffer = bytearray()
        self._offset = offset

    def feed(self, data: bytes) -> list[Frame]:
        self._buffer += data
        frames = []
        while (frame := self._next()) is not None:
            frames.append(frame)
        return frames

    def _next(self) -> Frame | None:
        line = self._buffer.find(b"\n", 0, _MAX_HEAD)
        if line < 0:
            if len(self._buffer) >= _MAX_HEAD:
                raise BrokenFrames
            return None
        try:
            head = json.loads(bytes(self._buffer[:line]))
            size, command, kind = int(head["n"]), str(head["c"]), str(head["t"])
        except (ValueError, LookupError, TypeError) as error:
            raise BrokenFrames from error
        if len(self._buffer) < line + 1 + size:
            return None
        data = bytes(self._buffer[line + 1 : line + 1 + size])
        del self._buffer[: line + 1 + size]
        start, self._offset = self._offset, self._offset + line + 1 + size
        return Frame(command, kind, data, head, start, self._offset)


async def available(process: Process, offset: int) -> AsyncIterator[Frame]:
    """Yields the frames from an offset that are there now."""
    parser, at = Parser(offset), offset
    while data := await process.read("stdout", at, _PIECE):
        at += len(data)
        for frame in parser.feed(data):
            yield frame


async def following(process: Process, offset: int) -> AsyncIterator[Frame]:
    """Yields the frames from an offset as they are written, until the process ends."""
    parser = Parser(offset)
    async for chunk in process.output("stdout", offset):
        for frame in parser.feed(chunk.data):
            yield frame
