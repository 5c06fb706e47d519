"""What happens in an interpreter, for whoever looks on: its entries as they are noted, and output as it comes."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from holdfast.api.box.process import Stream
from holdfast.interpreter.kernel.execution import Printed

OUTPUT: Final = "interpreter.output"
"""Live only: on the thread, output is part of its execution."""
MISSED: Final = "interpreter.missed"
TEMPLATE: Final = "interpreter.template"
"""Live only: a template that is built first, step by step."""
_HELD: Final = 4096
"""Events that wait for one who looks on. Who is slower misses the oldest, and is told how many."""


class Events:
    """Look on with `async for event in interpreter.events.follow()`."""

    def __init__(self) -> None:
        self._following: list[_Following] = []
        self._closed = False

    async def follow(self) -> AsyncIterator[Mapping[str, Any]]:
        """From now on, until the interpreter is shut down."""
        following = _Following()
        if self._closed:
            return
        self._following.append(following)
        try:
            while True:
                while following.held or following.missed:
                    yield following.take()
                if self._closed:
                    return
                following.come.clear()
                await following.come.wait()
        finally:
            self._following.remove(following)

    def tell(self, event: Mapping[str, Any]) -> None:
        for each in self._following:
            each.give(event)

    def listening(self, execution: str, on_output: Printed | None) -> Printed | None:
        """Who is to be given the output of an execution: who asked for it, and those who look on now."""
        if not self._following:
            return on_output

        def printed(stream: Stream, data: bytes) -> None:
            if on_output is not None:
                on_output(stream, data)
            text = data.decode("utf-8", "replace")
            self.tell({"type": OUTPUT, "execution": execution, "stream": stream, "text": text})

        return printed

    def close(self) -> None:
        self._closed = True
        for each in self._following:
            each.come.set()


class Building:
    """A `holdfast.images.Progress`: the build of a template, as events."""

    def __init__(self, events: Events, template: str) -> None:
        self._events = events
        self._template = template
        self._step = ""
        self._began = 0.0

    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        self._step, self._began = step, time.monotonic()
        self._tell("began", detail=detail)

    def advance(self, amount: int) -> None:
        """Steps are enough."""

    def output(self, data: bytes) -> None:
        """As above: what a step that fails has said is in its error."""

    def end(self, summary: str = "") -> None:
        self._tell("ended", detail=summary, seconds=time.monotonic() - self._began)

    def skip(self, step: str, detail: str = "") -> None:
        self._step = step
        self._tell("cached", detail=detail)

    def _tell(self, status: str, **more: Any) -> None:
        self._events.tell({"type": TEMPLATE, "template": self._template, "step": self._step, "status": status, **more})


class _Following:
    def __init__(self) -> None:
        self.held: deque[Mapping[str, Any]] = deque()
        self.missed = 0
        self.come = asyncio.Event()

    def give(self, event: Mapping[str, Any]) -> None:
        if len(self.held) >= _HELD:
            self.held.popleft()
            self.missed += 1
        self.held.append(event)
        self.come.set()

    def take(self) -> Mapping[str, Any]:
        if self.missed:
            missed, self.missed = self.missed, 0
            return {"type": MISSED, "count": missed}
        return self.held.popleft()
