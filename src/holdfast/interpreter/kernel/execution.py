"""An execution under way, as its host sees it: what it printed, how long it computed; and what comes of it.

What a context says of it is anybody's: read with care, and refused where it makes no sense.
"""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.api.box.process import Stream
from holdfast.api.errors.interpreters import KernelUnreachable
from holdfast.guest.kernel import value_codec
from holdfast.interpreter.results import VALUE, Artifact, CodeError, Execution

Printed = Callable[[Stream, bytes], None]


class Shown:
    """What is shown of one stream: up to so many characters of it, from its beginning and from its end."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head = ""
        self._tail = ""
        self._characters = 0
        self._bytes = 0

    def take(self, data: bytes) -> None:
        self._bytes += len(data)
        self._add(self._decoder.decode(data))

    def _add(self, text: str) -> None:
        self._characters += len(text)
        room = self._limit - len(self._head)
        self._head += text[:room]
        if len(text) > room:
            self._tail = (self._tail + text[room:])[-self._limit :]

    def text(self, whole: Artifact | None) -> str:
        """`whole` is the file that the stream is kept in, as far as it is."""
        self._add(self._decoder.decode(b"", final=True))
        if self._characters <= self._limit:
            return self._head
        half = self._limit // 2
        first, last = self._head[:half], (self._head + self._tail)[-half:]
        where = ""
        if whole is not None:
            kept = "all of it is" if whole.size >= self._bytes else f"its first {whole.size} bytes are"
            where = f": {kept} in {whole.path}"
        left_out = self._characters - len(first) - len(last)
        return f"{first}\n... {left_out} characters left out{where} ...\n{last}"


@dataclass(slots=True)
class Running:
    """An execution that has not ended."""

    id: str
    began: float
    limit: int
    done: asyncio.Future[tuple[Mapping[str, Any], bytes]]
    on_output: Printed | None
    streams: dict[Stream, Shown] = field(default_factory=dict)
    calls: int = 0
    """Of its calls that are being carried out now."""
    away: float = 0.0
    """Seconds in which the host was at work for it."""
    away_since: float = 0.0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, stream: Stream, data: bytes) -> None:
        if stream not in self.streams:
            self.streams[stream] = Shown(self.limit)
        self.streams[stream].take(data)

    def take_again(self, stream: Stream) -> None:
        """What was taken so far comes again, with what this process has missed."""
        self.streams.pop(stream, None)

    def printed(self, stream: Stream, whole: Artifact | None) -> str:
        """What is shown of it: all, or its beginning and its end."""
        shown = self.streams.get(stream)
        return "" if shown is None else shown.text(whole)

    def computed(self, now: float) -> float:
        waiting = now - self.away_since if self.calls else 0.0
        return now - self.began - self.away - waiting

    def call_began(self, now: float) -> None:
        if self.calls == 0:
            self.away_since = now
        self.calls += 1
        self.moved.set()

    def call_ended(self, now: float) -> None:
        self.calls -= 1
        if self.calls == 0:
            self.away += now - self.away_since
        self.moved.set()


def result_of(running: Running, document: Mapping[str, Any], content: bytes, now: float) -> Execution:
    try:
        artifacts = tuple(
            Artifact(str(each["name"]), str(each["media"]), str(each["path"]), int(each["size"]))
            for each in document.get("artifacts", ())
        )
        error = document.get("error")
        told = None
        if error is not None:
            told = CodeError(
                str(error["kind"]), str(error["message"]), str(error["traceback"]), bool(error.get("syntax"))
            )
        value = value_codec.load(content) if content else None
        text = document.get("text")
        missing = None if document.get("unshipped") is None else str(document["unshipped"])
        if missing is not None and text is None:
            text = f"<{missing}>"
        large = next((each for each in artifacts if each.name == VALUE), None)
        if large is not None:
            missing = f"it has {large.size:,} bytes: read_value gives it"
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as broken:
        raise KernelUnreachable(f"the kernel says what makes no sense: {broken}") from None
    files = {each.name: each for each in artifacts}
    submitted = value if document.get("submitted") else None
    return Execution(
        running.id,
        running.printed("stdout", files.get("stdout")),
        running.printed("stderr", files.get("stderr")),
        None if submitted is not None else value,
        None if text is None else str(text),
        told,
        submitted,
        artifacts,
        now - running.began,
        running.computed(now),
        state_lost=bool(document.get("lost")),
        value_missing=missing,
    )


def killed(message: str, *, lost: bool) -> dict[str, Any]:
    return {"error": {"kind": "KernelKilled", "message": message, "traceback": message}, "lost": lost}
