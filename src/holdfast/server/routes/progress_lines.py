"""Streams the progress of a long request as lines of JSON."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any, Final

from holdfast.api.box.records import Step
from holdfast.api.errors import HoldfastError

NDJSON: Final = "application/x-ndjson"
_SILENCE: Final = 10.0
"""Seconds without a line after which an empty line is sent."""
_MOST_OUTPUT: Final = 256 * 1024
"""Characters of output that wait to be sent."""
_PAUSE: Final = 0.1
"""Seconds between lines about bytes, which are added up meanwhile."""


class ProgressLines:
    """A `holdfast.api.progress.Progress`. The queue stays short: there are few steps, and amounts are added up."""

    def __init__(self) -> None:
        self._held: deque[dict[str, Any]] = deque()
        self._come = asyncio.Event()

    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        self._tell({"type": "begin", "step": step, "detail": detail, "total": total})

    def advance(self, amount: int) -> None:
        if self._held and self._held[-1]["type"] == "advance":
            self._held[-1]["amount"] += amount
        else:
            self._tell({"type": "advance", "amount": amount})

    def output(self, data: bytes) -> None:
        """The output of programs is not sent."""

    def end(self, summary: str = "") -> None:
        self._tell({"type": "end", "summary": summary})

    def step(self, step: Step) -> None:
        """A step of a diagnosis is done."""
        self._tell({"type": "step", "step": step.to_json()})

    def skip(self, step: str, detail: str = "") -> None:
        self._tell({"type": "skip", "step": step, "detail": detail})

    async def lines(self, work: Awaitable[Mapping[str, Any]]) -> AsyncIterator[bytes]:
        """Yield the progress of `work`, and then its result. An error before the first line is raised here; a later one
        is the last line. The work is cancelled if the reader leaves."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._come.set())
        sent = False
        try:
            while True:
                if not self._held and not task.done():
                    self._come.clear()
                    try:
                        await asyncio.wait_for(self._come.wait(), _SILENCE)
                    except TimeoutError:
                        yield b"\n"
                        continue
                while self._held:
                    sent = True
                    yield _line(self._held.popleft())
                if task.done():
                    break
                await asyncio.wait((task,), timeout=_PAUSE)
            try:
                yield _line(task.result())
            except HoldfastError as error:
                if not sent:
                    raise
                problem = {"code": error.code, "message": error.message, "hint": error.hint}
                yield _line({"type": "error", "error": problem})
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _tell(self, line: dict[str, Any]) -> None:
        self._held.append(line)
        self._come.set()


class OutputLines(ProgressLines):
    """Sends the output of programs, too. If the reader is slow, the oldest output that waits is dropped."""

    def output(self, data: bytes) -> None:
        text = data.decode(errors="replace")
        if self._held and self._held[-1]["type"] == "output":
            self._held[-1]["text"] = (self._held[-1]["text"] + text)[-_MOST_OUTPUT:]
        else:
            self._tell({"type": "output", "text": text[-_MOST_OUTPUT:]})


def _line(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n"
