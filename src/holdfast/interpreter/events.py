"""Live events of an interpreter: its entries when they are noted, and output as it arrives."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from holdfast.api.box.process import Stream
from holdfast.interpreter.execution import OutputCallback

OUTPUT: Final = "interpreter.output"
"""Only live: on the thread, output is part of the execution."""
MISSED: Final = "interpreter.missed"
TEMPLATE: Final = "interpreter.template"
"""Only live: the steps of building a template."""
_QUEUED: Final = 4096
"""Events queued for one follower. A slower follower misses the oldest, and gets their number."""


class Events:
    """Follow them with `async for event in interpreter.events.follow()`."""

    def __init__(self) -> None:
        self._followers: list[_Follower] = []
        self._closed = False

    async def follow(self) -> AsyncIterator[Mapping[str, Any]]:
        """Yield events from now on, until the interpreter is shut down."""
        follower = _Follower()
        if self._closed:
            return
        self._followers.append(follower)
        try:
            while True:
                while follower.queue or follower.missed:
                    yield follower.take()
                if self._closed:
                    return
                follower.arrived.clear()
                await follower.arrived.wait()
        finally:
            self._followers.remove(follower)

    def publish(self, event: Mapping[str, Any]) -> None:
        for each in self._followers:
            each.put(event)

    def output_callback(self, execution: str, on_output: OutputCallback | None) -> OutputCallback | None:
        """A callback that passes output to `on_output` and to the present followers."""
        if not self._followers:
            return on_output

        def publish_output(stream: Stream, data: bytes) -> None:
            if on_output is not None:
                on_output(stream, data)
            text = data.decode("utf-8", "replace")
            self.publish({"type": OUTPUT, "execution": execution, "stream": stream, "text": text})

        return publish_output

    def close(self) -> None:
        self._closed = True
        for each in self._followers:
            each.arrived.set()


class TemplateProgress:
    """A `holdfast.images.Progress` that publishes the build of a template as events."""

    def __init__(self, events: Events, template: str) -> None:
        self._events = events
        self._template = template
        self._step = ""
        self._began = 0.0

    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        self._step, self._began = step, time.monotonic()
        self._publish("began", detail=detail)

    def advance(self, amount: int) -> None:
        """Ignored: events report only steps."""

    def output(self, data: bytes) -> None:
        """Ignored: the error of a failed step has its output."""

    def end(self, summary: str = "") -> None:
        self._publish("ended", detail=summary, seconds=time.monotonic() - self._began)

    def skip(self, step: str, detail: str = "") -> None:
        self._step = step
        self._publish("cached", detail=detail)

    def _publish(self, status: str, **more: Any) -> None:
        event = {"type": TEMPLATE, "template": self._template, "step": self._step, "status": status}
        self._events.publish({**event, **more})


class _Follower:
    def __init__(self) -> None:
        self.queue: deque[Mapping[str, Any]] = deque()
        self.missed = 0
        self.arrived = asyncio.Event()

    def put(self, event: Mapping[str, Any]) -> None:
        if len(self.queue) >= _QUEUED:
            self.queue.popleft()
            self.missed += 1
        self.queue.append(event)
        self.arrived.set()

    def take(self) -> Mapping[str, Any]:
        if self.missed:
            missed, self.missed = self.missed, 0
            return {"type": MISSED, "count": missed}
        return self.queue.popleft()
