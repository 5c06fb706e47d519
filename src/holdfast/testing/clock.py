"""Clocks for tests: one that moves only when told to, and the clocks of a server, shifted forward or back."""

from __future__ import annotations

import heapq
import mmap
import struct
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final

from holdfast.server.clocks import Clocks

_SHIFTS: Final = struct.Struct("=qq")


class _Timer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock under the test's control. `advance` moves it and calls the timers that are due, in order."""

    def __init__(self, now: int = 1_800_000_000_000) -> None:
        self._now = now
        self._order = count()
        self._timers: list[tuple[int, int, _Timer]] = []

    def now(self) -> int:
        return self._now

    def call_at(self, when: int, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(callback)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def advance(self, milliseconds: int) -> None:
        end = self._now + milliseconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, when)
            if timer.callback is not None:
                timer.callback()
        self._now = end

    @property
    def timers(self) -> int:
        """How many timers are set."""
        return sum(1 for _, _, timer in self._timers if timer.callback is not None)


class ShiftedClocks:
    """The clocks of a server in another process, shifted by offsets in a file.

    Any process with the file can change the offsets, while the server runs or before the next one starts.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        if not file.exists():
            file.write_bytes(_SHIFTS.pack(0, 0))

    def jump(self, milliseconds: int) -> None:
        """Set the wall clock forward or back, without time passing."""
        self._shift(milliseconds, 0)

    def pass_time(self, milliseconds: int) -> None:
        """Let this much time pass at once."""
        self._shift(milliseconds, milliseconds)

    def _shift(self, now: int, ticks: int) -> None:
        with self.file.open("r+b") as file, mmap.mmap(file.fileno(), _SHIFTS.size) as shared:
            before = _SHIFTS.unpack(shared[:])
            shared[:] = _SHIFTS.pack(before[0] + now, before[1] + ticks)

    def clocks(self) -> Clocks:
        """Returns the clocks for the server."""
        with self.file.open("rb") as file:
            shared = mmap.mmap(file.fileno(), _SHIFTS.size, prot=mmap.PROT_READ)
        plain = Clocks()
        return Clocks(
            lambda: plain.now() + _SHIFTS.unpack(shared[:])[0],
            lambda: plain.ticks() + _SHIFTS.unpack(shared[:])[1],
        )
