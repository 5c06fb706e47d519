"""An execution under way, as its host sees it: what it printed, how long it computed; and what comes of it.

What a context says of it is anybody's: read with care, and refused where it makes no sense.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.boxes.process import Stream
from holdfast.guest.kernel import shipping
from holdfast.interpreter.errors import KernelUnreachable
from holdfast.interpreter.results import Artifact, CodeError, Execution

Printed = Callable[[Stream, bytes], None]


@dataclass(slots=True)
class Running:
    """An execution that has not ended."""

    id: str
    began: float
    limit: int
    done: asyncio.Future[tuple[Mapping[str, Any], bytes]]
    on_output: Printed | None
    heads: dict[Stream, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})
    tails: dict[Stream, bytearray] = field(default_factory=lambda: {"stdout": bytearray(), "stderr": bytearray()})
    sizes: dict[Stream, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    calls: int = 0
    """Of its calls that are being carried out now."""
    away: float = 0.0
    """Seconds in which the host was at work for it."""
    away_since: float = 0.0
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, stream: Stream, data: bytes) -> None:
        self.sizes[stream] += len(data)
        head = self.heads[stream]
        if (room := self.limit - len(head)) > 0:
            head += data[:room]
            data = data[room:]
        if data:
            tail = self.tails[stream]
            tail += data[-self.limit :]
            if len(tail) > 2 * self.limit:
                del tail[: -self.limit]

    def take_again(self, stream: Stream) -> None:
        """What was taken so far comes again, with what this process has missed."""
        self.heads[stream], self.tails[stream], self.sizes[stream] = bytearray(), bytearray(), 0

    def printed(self, stream: Stream, whole: str | None) -> str:
        """What is shown of it: all, or its beginning and its end."""
        head, tail, size = self.heads[stream], self.tails[stream], self.sizes[stream]
        text = bytes(head + tail).decode("utf-8", "replace") if size <= len(head) + len(tail) else ""
        if size <= self.limit or (text and len(text) <= self.limit):
            return text
        half = self.limit // 2
        first, last = bytes(head[:half]).decode("utf-8", "ignore"), bytes(tail[-half:]).decode("utf-8", "ignore")
        where = f": all of it is in {whole}" if whole else ""
        return f"{first}\n... {size - 2 * half} bytes left out{where} ...\n{last}"

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
        value = shipping.load(content) if content else None
        text = document.get("text")
        if document.get("unshipped") and text is None:
            text = f"<{document['unshipped']}>"
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as broken:
        raise KernelUnreachable(f"the kernel says what makes no sense: {broken}") from None
    files = {each.name: each.path for each in artifacts}
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
        bool(document.get("lost")),
    )


def killed(message: str, *, lost: bool) -> dict[str, Any]:
    return {"error": {"kind": "KernelKilled", "message": message, "traceback": message}, "lost": lost}
