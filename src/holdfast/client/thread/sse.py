"""Decodes server-sent events from bytes as they arrive. Lines end only in LF, CR or CRLF."""

from __future__ import annotations

import re
from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Final

_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    type: str
    data: str


class LineDecoder:
    """Splits bytes into lines. A line may arrive in any number of pieces, and a CRLF may be split in two."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the lines that this chunk completes."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        lines = _LINE_END.split(chunk)
        if len(lines) == 1:
            self._pieces.append(chunk)
            return []
        lines[0] = b"".join([*self._pieces, lines[0]])
        self._pieces = [lines.pop()]
        return lines


async def decode_events(chunks: AsyncIterable[bytes]) -> AsyncIterator[Event]:
    """Yields complete events. Drops an event that the end of the connection cuts off, as the standard requires."""
    decoder = LineDecoder()
    event_type, data = "message", list[str]()
    async for chunk in chunks:
        for line in decoder.feed(chunk):
            if not line:
                if data:
                    yield Event(event_type, "\n".join(data))
                event_type, data = "message", []
                continue
            name, _, value = line.partition(b":")
            text = value.removeprefix(b" ").decode()
            if name == b"data":
                data.append(text)
            elif name == b"event":
                event_type = text
