"""Samples what boxes use, in the background: a scrape of /metrics waits for no box, and many watchers share one sample.

Sampling starts with the first scrape and stops when there are no more scrapes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from holdfast.api.box.box import Metrics
    from holdfast.boxes.rows import BoxRow
    from holdfast.boxes.service.boxes import Boxes

MOST: Final = 500
"""Most boxes to sample. If there are more, the most recently active ones."""
FRESH_MS: Final = 900
"""How old a sample for watchers may be."""
EVERY_SECONDS: Final = 15.0
"""Between samples for scrapes."""
UNWATCHED_MS: Final = 5 * 60 * 1000
"""How long after the last scrape sampling stops."""
DISK_MS: Final = 60_000
"""How old the size on disk may be, because it takes long to measure."""
_AT_ONCE: Final = 8
_ONE_BOX_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BoxUsage:
    """What one box used at one moment."""

    row: BoxRow
    at: int
    """UTC milliseconds."""
    metrics: Metrics | None
    """None if the box is not running or did not answer."""


@dataclass(frozen=True, slots=True)
class Usages:
    usages: tuple[BoxUsage, ...] = ()
    left_out: int = 0
    """Number of boxes that were not sampled."""
    at: int = 0


class BoxSamples:
    """The latest samples of all boxes. Owns the tasks that take them, until `close`."""

    def __init__(self) -> None:
        self._latest = Usages()
        self._disk: dict[str, tuple[int, int | None]] = {}
        self._taking: asyncio.Task[Usages] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._asked_at = 0

    async def close(self) -> None:
        """Closing twice does nothing."""
        ending: list[asyncio.Task[Usages] | asyncio.Task[None]] = []
        ending += [task for task in (self._keeping, self._taking) if task is not None]
        self._keeping = self._taking = None
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    def latest(self, boxes: Boxes, live: Collection[str]) -> Usages:
        """Return the latest samples of the boxes in `live`, without waiting, and keep sampling from now on."""
        self._asked_at = boxes.clock()
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep(boxes), name="samples of boxes")
        latest = self._latest
        return replace(latest, usages=tuple(each for each in latest.usages if each.row.id in live))

    async def fresh(self, boxes: Boxes) -> Usages:
        """Return samples that are at most a second old. Concurrent callers share one sample."""
        if boxes.clock() - self._latest.at <= FRESH_MS:
            return self._latest
        if self._taking is None or self._taking.done():
            self._taking = asyncio.create_task(self._take(boxes), name="sample of boxes")
        return await asyncio.shield(self._taking)

    async def _keep(self, boxes: Boxes) -> None:
        while boxes.clock() - self._asked_at < UNWATCHED_MS:
            try:
                await self.fresh(boxes)
            except Exception as error:  # the store is full or locked: try again next time
                log.warning("cannot sample boxes: %s", error)
            await asyncio.sleep(EVERY_SECONDS)
        self._latest = Usages()  # too old to be useful

    async def _take(self, boxes: Boxes) -> Usages:
        rows = await boxes.rows.live(boxes.tenant, boxes.node)
        chosen = most_active(rows, MOST)
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(row: BoxRow) -> BoxUsage:
            async with at_once:
                metrics = await self._metrics(boxes, row)
                return BoxUsage(row, boxes.clock(), metrics)

        usages = tuple(await asyncio.gather(*(one(row) for row in chosen)))
        known = {row.id for row in chosen}
        self._disk = {id: found for id, found in self._disk.items() if id in known}
        self._latest = Usages(usages, len(rows) - len(chosen), boxes.clock())
        return self._latest

    async def _metrics(self, boxes: Boxes, row: BoxRow) -> Metrics | None:
        from holdfast.api.errors.boxes import BoxError

        if row.state.value not in ("running", "paused") or row.provider not in boxes.providers:
            return None
        try:
            async with time_limit(_ONE_BOX_SECONDS), await boxes.provider(row.provider).attach(row.id) as box:
                measured_at, disk = self._disk.get(row.id, (0, None))
                if boxes.clock() - measured_at > DISK_MS:
                    self._disk[row.id] = (boxes.clock(), None)  # so that a slow box is not measured each time
                    metrics = await box.metrics()
                    self._disk[row.id] = (boxes.clock(), metrics.disk)
                    return metrics
                return replace(await box.activity(), disk=disk)
        except (BoxError, TimeoutError) as error:
            log.debug("cannot sample box %s: %s", row.id, error)
            return None


def most_active(rows: Sequence[BoxRow], most: int) -> list[BoxRow]:
    """The most recently active rows, in their given order."""
    if len(rows) <= most:
        return list(rows)
    chosen = {row.id for row in sorted(rows, key=lambda row: row.last_active_at, reverse=True)[:most]}
    return [row for row in rows if row.id in chosen]
