"""What boxes use, sampled beside whoever asks: a scrape of /metrics waits for no box, and of many who watch, one asks.

Sampling begins with the first scrape and ends when nobody scrapes any more.
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
"""Boxes that are sampled: beyond that, those that were active last."""
FRESH_MS: Final = 900
"""How old a sample may be for who watches."""
EVERY_SECONDS: Final = 15.0
"""Between samples for who scrapes."""
UNWATCHED_MS: Final = 5 * 60 * 1000
"""Without a scrape, after which nothing is sampled any more."""
DISK_MS: Final = 60_000
"""How old the size on disk may be: it takes long to measure."""
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
    """None where nothing runs, or the box did not answer."""


@dataclass(frozen=True, slots=True)
class Usages:
    usages: tuple[BoxUsage, ...] = ()
    left_out: int = 0
    """Boxes that there are beside these."""
    at: int = 0


class BoxSamples:
    """The latest samples of one service's boxes. Owns the task that takes them, until `close`."""

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
        """As of a while ago, of boxes that still live; nobody is waited for. Goes on sampling from now on."""
        self._asked_at = boxes.clock()
        if self._keeping is None or self._keeping.done():
            self._keeping = asyncio.create_task(self._keep(boxes), name="samples of boxes")
        latest = self._latest
        return replace(latest, usages=tuple(each for each in latest.usages if each.row.id in live))

    async def fresh(self, boxes: Boxes) -> Usages:
        """As of a second ago at most. All who ask at once get the same."""
        if boxes.clock() - self._latest.at <= FRESH_MS:
            return self._latest
        if self._taking is None or self._taking.done():
            self._taking = asyncio.create_task(self._take(boxes), name="sample of boxes")
        return await asyncio.shield(self._taking)

    async def _keep(self, boxes: Boxes) -> None:
        while boxes.clock() - self._asked_at < UNWATCHED_MS:
            try:
                await self.fresh(boxes)
            except Exception as error:  # the store is full or locked: the next time may do better
                log.warning("boxes could not be sampled: %s", error)
            await asyncio.sleep(EVERY_SECONDS)
        self._latest = Usages()  # what is old says nothing

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
                    self._disk[row.id] = (boxes.clock(), None)  # one that takes too long is not tried each time
                    metrics = await box.metrics()
                    self._disk[row.id] = (boxes.clock(), metrics.disk)
                    return metrics
                return replace(await box.activity(), disk=disk)
        except (BoxError, TimeoutError) as error:
            log.debug("box %s could not be sampled: %s", row.id, error)
            return None


def most_active(rows: Sequence[BoxRow], most: int) -> list[BoxRow]:
    """Those that worked last, in the order given."""
    if len(rows) <= most:
        return list(rows)
    chosen = {row.id for row in sorted(rows, key=lambda row: row.last_active_at, reverse=True)[:most]}
    return [row for row in rows if row.id in chosen]
