"""Asks the box of a run about its runner, and signals it. Wakes no box. Errors of boxes are logged, not raised."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from holdfast.api.box.box import LimitHit, Liveness, Power
from holdfast.api.box.process import ProcessState
from holdfast.api.errors.boxes import BoxError, BoxNotFound, ProcessNotFound
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.reconcile.rules import ProbeResult, RunnerState
from holdfast.threads.run_events import Run
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

TERMINATE: Final = 15
"""Makes a runner ask at once whether it has to end."""
KILL: Final = 9
_SECONDS: Final = 5.0
_MOST_WORDS: Final = 64 * 1024
_OPEN_SECONDS: Final = 30.0
"""A new stream to a box in a cloud takes longer than a question."""
_AT_ONCE: Final = 32
_UNKNOWN: Final = ProbeResult(Liveness.UNKNOWN, RunnerState.UNKNOWN)


class RunnerProbe:
    """Asks only a few boxes at a time."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes
        self._room = asyncio.Semaphore(_AT_ONCE)

    async def look(self, run: Run) -> ProbeResult:
        if run.box is None or not run.is_ours:
            return _UNKNOWN
        try:
            async with self._room, time_limit(_SECONDS):
                return await self._look(run, run.box)
        except BoxNotFound:
            return ProbeResult(Liveness.GONE, RunnerState.ENDED)
        except (BoxError, TimeoutError) as error:
            log.info("cannot ask box %s of run %s: %s", run.box, run.run, error)
            return _UNKNOWN

    async def _look(self, run: Run, box_id: str) -> ProbeResult:
        row = await self._boxes.get(box_id)
        if row.tombstone:
            return ProbeResult(Liveness.GONE, RunnerState.ENDED)
        if row.node != self._boxes.node:
            return _UNKNOWN
        liveness, power = await self._boxes.look(row)
        if liveness is not Liveness.LIVE:
            return ProbeResult(liveness, RunnerState.UNKNOWN)
        if power is Power.STOPPED:
            return ProbeResult(liveness, RunnerState.STOPPED, limits=await self.limits(box_id))
        if power is not Power.RUNNING or run.process is None:
            return ProbeResult(liveness, RunnerState.UNKNOWN)
        async with await self._boxes.peek(box_id) as box:
            try:
                info = await (await box.process(run.process)).info()
            except ProcessNotFound:
                return ProbeResult(liveness, RunnerState.ENDED)
        if info.state is ProcessState.RUNNING:
            return ProbeResult(liveness, RunnerState.RUNNING)
        if info.state is ProcessState.LOST:  # the box may have been restarted
            return ProbeResult(liveness, RunnerState.STOPPED)
        return ProbeResult(liveness, RunnerState.ENDED, info.exit_code, await self.limits(box_id))

    async def limits(self, box_id: str) -> tuple[LimitHit, ...]:
        """Returns the limits that ended processes in a box, or none if the box cannot be asked."""
        try:
            async with time_limit(_SECONDS), await self._boxes.peek(box_id) as box:
                return tuple(await box.limits_hit())
        except (BoxError, TimeoutError, OSError) as error:
            log.info("cannot ask box %s which limits were hit: %s", box_id, error)
            return ()

    async def last_words(self, run: Run) -> str:
        """Returns the end of the runner's error output, or nothing if the box cannot be asked."""
        if run.box is None or run.process is None or not run.is_ours:
            return ""
        try:
            async with time_limit(_SECONDS), await self._boxes.peek(run.box) as box:
                process = await box.process(run.process)
                said = b""
                while piece := await process.read("stderr", len(said), _MOST_WORDS):
                    said += piece
                    if len(said) > _MOST_WORDS:
                        break
                return said[-_MOST_WORDS:].decode("utf-8", "replace")
        except (BoxError, TimeoutError, OSError) as error:
            log.info("cannot read the output of the runner of run %s: %s", run.run, error)
            return ""

    async def signal(self, run: Run, number: int) -> None:
        """Signal the runner of a run that this server launched. A failure is only logged."""
        if run.box is None or run.process is None or not run.is_ours:
            return
        try:
            async with time_limit(_SECONDS), await self._boxes.peek(run.box) as box:
                await (await box.process(run.process)).signal(number)
        except (BoxError, TimeoutError) as error:
            log.info("cannot signal the runner of run %s: %s", run.run, error)

    async def open_guest_api(self, box_id: str) -> bool:
        """Let a box reach this server, for a run that outlived its own server. Returns whether it does."""
        try:
            async with time_limit(_OPEN_SECONDS), await self._boxes.peek(box_id) as box:
                await box.open_guest_api()
        except (BoxError, TimeoutError) as error:
            log.info("box %s cannot reach the guest API: %s", box_id, str(error) or type(error).__name__)
            return False
        return True
