"""Reads what our programs in a box write: frames, each a line of JSON and as many bytes as its `n` says.

Other code in the box can write into the same output, so a frame may be anything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.box.process import Process
from holdfast.box_json import parse
from holdfast.compat.daytona.http.errors import ApiError

_MAX_HEAD: Final = 65_536
_MAX_DATA: Final = 16 * 1024 * 1024
"""The longest command is shorter: a request body has at most that."""
_PIECE: Final = 1 << 18
_MOST_CODE: Final = 255


class BrokenFrames(ApiError):
    """Something in the box wrote over our frames. What follows cannot be read."""

    def __init__(self) -> None:
        super().__init__(
            410, "code in the sandbox wrote into the output of this session or context: delete it, and create another"
        )


@dataclass(frozen=True, slots=True)
class Frame:
    command: str
    kind: str
    data: bytes
    head: dict[str, Any]
    offset: int
    """Where it begins in the output of its process."""
    end: int

    def exit_code(self) -> int:
        """The code of a frame of kind `exit`."""
        code = self.head.get("code")
        if type(code) is not int or not -_MOST_CODE <= code <= _MOST_CODE:
            raise BrokenFrames
        return code


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
            head = parse(self._buffer[:line])
            size, command, kind = head["n"], head["c"], head["t"]
        except (ValueError, LookupError, TypeError) as error:
            raise BrokenFrames from error
        if type(size) is not int or not 0 <= size <= _MAX_DATA or type(command) is not str or type(kind) is not str:
            raise BrokenFrames
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
