"""Keeps boxes from filling the disk. The kernel limits a single file (RLIMIT_FSIZE); this module watches their sum.

An ordinary user cannot set quotas. So boxes with a limit are measured as often as that is cheap. If a box exceeds its
limit, or it is the largest when the machine runs out of space, its processes are killed and its files stay. Processes
started later may read files and free space. They are killed only if the box grows further.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.providers.host.disk.data_dir import measure

log = logging.getLogger(__name__)

NOTE: Final = "over-disk-limit"
"""A file in the folder of a box whose processes were killed. It contains the reason."""
_SECONDS: Final = 1.0
_SHARE: Final = 0.1
"""The share of time that measuring may take."""
_GROWTH: Final = 256 << 20
_GROWTH_SHARE: Final = 1 / 16
"""Boxes without a limit of their own are measured when free space has shrunk by this much, or this share of their
limit."""
_ALL_SECONDS: Final = 60.0
"""How often they are measured in any case."""
_DEFAULT: Final = 32 * 1024**3
_DEFAULT_SHARE: Final = 0.25
_RESERVE: Final = 1024**3
_RESERVE_SHARE: Final = 0.03
_REMEMBERED: Final = 10_000
_BOOKKEEPING: Final = 256 * 1024
"""Bytes by which a full box may grow before its processes are killed again: a snapshot alone adds folders."""
_EACH: Final = 1024
"""The least bytes that a file counts: even an empty file takes an inode, and these are limited."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A running box."""

    id: str
    folder: Path
    limit: int
    layers: tuple[Path, ...] = ()
    """Layers that the box has added. They do not change any more."""
    by_default: bool = False
    """The limit is the default, which is far above usual sizes. So the box is measured less often."""


@dataclass(frozen=True, slots=True)
class Verdict:
    id: str
    why: str


def judge(watched: Mapping[str, int | None], used: Mapping[str, int], free: int, reserve: int) -> list[Verdict]:
    """Returns the boxes to stop: those over their limit, and the largest if the machine has no space left."""
    verdicts = [
        Verdict(id, f"it holds {_size(used[id])} on disk, and its limit is {_size(limit)}")
        for id, limit in watched.items()
        if limit is not None and used.get(id, 0) > limit
    ]
    if free < reserve and not verdicts and used:
        largest = max(used, key=lambda id: used[id])
        why = f"the machine's disk has {_size(free)} left, and this box holds most: {_size(used[largest])}"
        verdicts.append(Verdict(largest, why))
    return verdicts


def _size(count: int) -> str:
    """Includes the exact number, so that a byte over the limit is visible."""
    return f"{count / 1e6:.1f} MB ({count} bytes)"


class DiskGuard:
    """Owned by the provider, which closes it."""

    def __init__(
        self, folder: Path, running: Callable[[], list[Watched]], stop_writers: Callable[[str], Awaitable[None]]
    ) -> None:
        self._folder = folder
        self._running = running
        self._stop_writers = stop_writers
        self._frozen: dict[Path, int] = {}
        self._measured_all = -math.inf
        self._free_then = 0
        self._stopped: dict[str, int] = {}
        """By box: bytes on disk after its processes were last killed. Removed when it is below its limit again."""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            begin = time.monotonic()
            try:
                await self.check()
            except OSError as error:
                log.warning("cannot measure the disk use of boxes: %s", error)
            await asyncio.sleep(max(_SECONDS, (time.monotonic() - begin) / _SHARE))

    async def check(self) -> None:
        boxes = {each.id: each for each in self._running()}
        free, reserve = _room(self._folder)
        all_of_them = free < reserve or self._is_time_for_all(free, list(boxes.values()))
        wanted = [each for each in boxes.values() if all_of_them or not each.by_default or each.id in self._stopped]
        used = {each.id: await asyncio.to_thread(self._measure, each) for each in wanted}
        needed = {layer for each in wanted for layer in each.layers}
        self._frozen = {layer: size for layer, size in self._frozen.items() if layer in needed}
        verdicts = judge({id: each.limit for id, each in boxes.items()}, used, free, reserve)
        for verdict in verdicts:
            if used[verdict.id] > self._stopped.get(verdict.id, -1 - _BOOKKEEPING) + _BOOKKEEPING:
                if verdict.id not in self._stopped:
                    log.warning("the processes of box %s are ended: %s", verdict.id, verdict.why)
                self._stopped[verdict.id] = used[verdict.id]
                (boxes[verdict.id].folder / NOTE).write_text(verdict.why)
                await self._stop_writers(verdict.id)
                # What they wrote until their end is not the growth of whoever starts now.
                after = await asyncio.to_thread(self._measure, boxes[verdict.id])
                self._stopped[verdict.id] = max(after, used[verdict.id])
        full = {verdict.id for verdict in verdicts}
        for id in used.keys() - full:  # the others were not measured
            (boxes[id].folder / NOTE).unlink(missing_ok=True)
            self._stopped.pop(id, None)
        while len(self._stopped) > _REMEMBERED:
            del self._stopped[next(iter(self._stopped))]

    def _is_time_for_all(self, free: int, boxes: Sequence[Watched]) -> bool:
        """Whether to measure all boxes. Doing that every second would be too expensive, so it depends on the free
        space."""
        now = time.monotonic()
        growth = min((_GROWTH, *(int(each.limit * _GROWTH_SHARE) for each in boxes if each.by_default)))
        if self._free_then - free < growth and now - self._measured_all < _ALL_SECONDS:
            self._free_then = max(self._free_then, free)
            return False
        self._measured_all, self._free_then = now, free
        return True

    def _measure(self, box: Watched) -> int:
        for layer in box.layers:
            if layer not in self._frozen:
                self._frozen[layer] = measure(layer, _EACH)
        return measure(box.folder, _EACH) + sum(self._frozen[layer] for layer in box.layers)


def read_note(folder: Path) -> str | None:
    """Returns why the processes of a box were killed, if it holds too much on disk."""
    try:
        return (folder / NOTE).read_text()
    except OSError:
        return None


def default_limit(folder: Path) -> int:
    """Returns the default limit of a box in bytes: a quarter of the disk, at most 32 GB."""
    status = os.statvfs(folder)
    return min(_DEFAULT, int(status.f_blocks * status.f_frsize * _DEFAULT_SHARE))


def _room(folder: Path) -> tuple[int, int]:
    """Returns the free bytes, and those that boxes must not use. Free is 0 if the file system is short of inodes."""
    status = os.statvfs(folder)
    total = status.f_blocks * status.f_frsize
    reserve = min(_RESERVE, int(total * _RESERVE_SHARE))
    if status.f_files and status.f_favail < status.f_files * _RESERVE_SHARE:
        return 0, reserve
    return status.f_bavail * status.f_frsize, reserve
