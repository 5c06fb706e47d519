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

from holdfast.providers.host.data_dir import measure

log = logging.getLogger(__name__)

NOTE: Final = "over-disk-limit"
"""In the folder of a box that was stopped from writing: why, for its diagnosis."""
_SECONDS: Final = 1.0
_SHARE: Final = 0.1
"""Of the time that may go into measuring."""
_GROWTH: Final = 256 << 20
_GROWTH_SHARE: Final = 1 / 16
"""By so many bytes, or so much of their limit, the room on the disk may shrink before boxes without a limit of their
own are measured."""
_ALL_SECONDS: Final = 60.0
"""How often they are measured in any case."""
_DEFAULT: Final = 32 * 1024**3
_DEFAULT_SHARE: Final = 0.25
_RESERVE: Final = 1024**3
_RESERVE_SHARE: Final = 0.03
_REMEMBERED: Final = 10_000
_EACH: Final = 1024
"""Bytes that a file counts for at least: an empty one takes its place, too, and there are only so many."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A running box."""

    id: str
    folder: Path
    limit: int
    layers: tuple[Path, ...] = ()
    """What it has added, and was frozen since: that changes no more."""
    by_default: bool = False
    """Nobody asked for this limit. It is far above what a box usually holds, and looked at less often."""


@dataclass(frozen=True, slots=True)
class Verdict:
    id: str
    why: str


def judge(watched: Mapping[str, int | None], used: Mapping[str, int], free: int, reserve: int) -> list[Verdict]:
    """Which boxes have to be stopped: those over their limit, and the largest where the machine has no room left."""
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
    """The number itself, too: what is a byte over its limit would look as large as it."""
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
        self._looked_at_all = -math.inf
        self._free_then = 0
        self._stopped: dict[str, int] = {}
        """What boxes held when their processes were last ended, by box; until there is room in them again."""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            begin = time.monotonic()
            try:
                await self.look()
            except OSError as error:
                log.warning("cannot measure the disk use of boxes: %s", error)
            await asyncio.sleep(max(_SECONDS, (time.monotonic() - begin) / _SHARE))

    async def look(self) -> None:
        boxes = {each.id: each for each in self._running()}
        free, reserve = _room(self._folder)
        all_of_them = free < reserve or self._is_time_for_all(free, list(boxes.values()))
        wanted = [each for each in boxes.values() if all_of_them or not each.by_default or each.id in self._stopped]
        used = {each.id: await asyncio.to_thread(self._measure, each) for each in wanted}
        needed = {layer for each in wanted for layer in each.layers}
        self._frozen = {layer: size for layer, size in self._frozen.items() if layer in needed}
        verdicts = judge({id: each.limit for id, each in boxes.items()}, used, free, reserve)
        for verdict in verdicts:
            if used[verdict.id] > self._stopped.get(verdict.id, -1):
                if verdict.id not in self._stopped:
                    log.warning("the processes of box %s are ended: %s", verdict.id, verdict.why)
                self._stopped[verdict.id] = used[verdict.id]
                (boxes[verdict.id].folder / NOTE).write_text(verdict.why)
                await self._stop_writers(verdict.id)
        full = {verdict.id for verdict in verdicts}
        for id in used.keys() - full:  # of the others nothing is known now
            (boxes[id].folder / NOTE).unlink(missing_ok=True)
            self._stopped.pop(id, None)
        while len(self._stopped) > _REMEMBERED:
            del self._stopped[next(iter(self._stopped))]

    def _is_time_for_all(self, free: int, boxes: Sequence[Watched]) -> bool:
        """Walking through the files of every box each second would cost more than it is worth. A box that came to hold
        much has left less room on the disk than there was."""
        now = time.monotonic()
        growth = min((_GROWTH, *(int(each.limit * _GROWTH_SHARE) for each in boxes if each.by_default)))
        if self._free_then - free < growth and now - self._looked_at_all < _ALL_SECONDS:
            self._free_then = max(self._free_then, free)
            return False
        self._looked_at_all, self._free_then = now, free
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
    """Bytes that a box may hold where nobody says how many: a quarter of the disk, and no more than 32 GB."""
    status = os.statvfs(folder)
    return min(_DEFAULT, int(status.f_blocks * status.f_frsize * _DEFAULT_SHARE))


def _room(folder: Path) -> tuple[int, int]:
    """Bytes that are free, and those that boxes shall not take. None are free where there is no room for names."""
    status = os.statvfs(folder)
    total = status.f_blocks * status.f_frsize
    reserve = min(_RESERVE, int(total * _RESERVE_SHARE))
    if status.f_files and status.f_favail < status.f_files * _RESERVE_SHARE:
        return 0, reserve
    return status.f_bavail * status.f_frsize, reserve
