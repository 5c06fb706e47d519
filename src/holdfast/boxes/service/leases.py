"""Taking turns: one at a time per name, across the tasks of this process and across all processes on one store.

A process has a lease on itself that it keeps renewing, with those of the turns it has: when it dies, all expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from holdfast.boxes.rows import BoxRows
from holdfast.threads.ids import new_id

LEASE: Final = 15_000
"""Milliseconds: how long a dead process is taken for alive."""
RENEW_SECONDS: Final = 4.0
TURN_SECONDS: Final = 60.0
"""How long another process may have the turn of a key before we say so."""
_FIRST_WAIT: Final = 0.005
_LONGEST_WAIT: Final = 0.1
_PROCESS: Final = "process/"

log = logging.getLogger(__name__)


class Leases:
    """The turns of one process. `join` before taking any; `close` gives everything back."""

    def __init__(self, rows: BoxRows, tenant: str, clock: Callable[[], int]) -> None:
        self.holder = new_id("h", random_digits=10)
        """This process, as others see it."""
        self._rows = rows
        self._tenant = tenant
        self._clock = clock
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}
        self._held: set[str] = set()
        self._heartbeat: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Show others that this process is alive, from now on."""
        if self._heartbeat is None:
            async with self.alone("join"):
                if self._heartbeat is None:
                    await self._take(_PROCESS + self.holder)
                    self._heartbeat = asyncio.create_task(self._renew(), name="box leases")

    async def close(self) -> None:
        if self._heartbeat is None:
            return
        heartbeat, self._heartbeat = self._heartbeat, None
        heartbeat.cancel()
        await asyncio.gather(heartbeat, return_exceptions=True)
        for name in list(self._held):
            await self._release(name)

    async def holders(self) -> set[str]:
        """All processes that are alive, this one included."""
        alive = await self._rows.held(self._tenant, _PROCESS, self._clock())
        return {name.removeprefix(_PROCESS) for name in alive} | {self.holder}

    @asynccontextmanager
    async def alone(self, name: str) -> AsyncIterator[None]:
        """One task of this process at a time."""
        with self._lock(name) as lock:
            async with lock:
                yield

    @asynccontextmanager
    async def turn(self, name: str, *, frees_space: bool = False) -> AsyncIterator[None]:
        """One at a time on the whole store. Waits as long as it is let: put a timeout around it."""
        async with self.alone(name):
            wait = _FIRST_WAIT
            while not await self._take(name, frees_space=frees_space):
                await asyncio.sleep(wait)
                wait = min(wait * 2, _LONGEST_WAIT)
            try:
                yield
            finally:
                await self._release(name)

    async def _take(self, name: str, *, frees_space: bool = False) -> bool:
        self._held.add(name)  # before it is ours: a cancelled call may still have taken it
        try:
            taken = await self._rows.take(
                self._tenant, name, self.holder, self._clock(), LEASE, frees_space=frees_space
            )
        except BaseException:
            await self._release(name)
            raise
        if not taken:
            self._held.discard(name)
        return taken

    async def _release(self, name: str) -> None:
        self._held.discard(name)
        releasing = asyncio.ensure_future(self._rows.release(self._tenant, name, self.holder))
        try:
            await asyncio.shield(releasing)
        except asyncio.CancelledError:
            await asyncio.wait([releasing])
            raise

    @contextmanager
    def _lock(self, name: str) -> Iterator[asyncio.Lock]:
        lock, users = self._locks.get(name, (asyncio.Lock(), 0))
        self._locks[name] = (lock, users + 1)
        try:
            yield lock
        finally:
            lock, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._rows.renew(self._tenant, tuple(self._held), self.holder, self._clock(), LEASE)
                await self._take(_PROCESS + self.holder)  # somebody may have taken us for dead, and swept it away
            except Exception as error:  # the store is full or locked: the next beat may do better
                log.warning("the leases of boxes could not be renewed: %s", error)
