"""Named locks, across the tasks of this process and all processes on one store.

A process renews a lease on itself, and the leases that it holds. When it dies, all of them expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final
from weakref import WeakValueDictionary

from holdfast.api.errors.boxes import BoxConflict
from holdfast.api.ids import new_id
from holdfast.boxes.rows import BoxRows
from holdfast.time_limit import time_limit

LEASE: Final = 15_000
"""Milliseconds after which a lease expires, and its process counts as dead."""
RENEW_SECONDS: Final = 4.0
TURN_SECONDS: Final = 60.0
"""How long to wait for another process that has the lease on a key."""
_FIRST_WAIT: Final = 0.005
_LONGEST_WAIT: Final = 0.1
_PROCESS: Final = "process/"

log = logging.getLogger(__name__)


class Leases:
    """The leases of one process. Call `join` before taking any. `close` releases all of them."""

    def __init__(self, rows: BoxRows, tenant: str, clock: Callable[[], int]) -> None:
        self.holder = new_id("h", random_digits=10)
        """The name of this process in the store."""
        self._rows = rows
        self._tenant = tenant
        self._clock = clock
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By name. A lock exists only while a task holds it or waits for it."""
        self._held: set[str] = set()
        self._heartbeat: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """Start to show other processes that this one is alive."""
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
        """Returns all live processes, including this one."""
        alive = await self._rows.held(self._tenant, _PROCESS, self._clock())
        return {name.removeprefix(_PROCESS) for name in alive} | {self.holder}

    def alone(self, name: str) -> AbstractAsyncContextManager[None]:
        """Lock a name against other tasks of this process."""
        return self._locks.setdefault(name, asyncio.Lock())

    @asynccontextmanager
    async def turn(self, name: str, *, frees_space: bool = False) -> AsyncIterator[None]:
        """Lock a name on the whole store. Waits without limit, so put a timeout around it."""
        async with self.alone(name):
            wait = _FIRST_WAIT
            while not await self._take(name, frees_space=frees_space):
                await asyncio.sleep(wait)
                wait = min(wait * 2, _LONGEST_WAIT)
            try:
                yield
            finally:
                await self._release(name)

    @asynccontextmanager
    async def turn_soon(self, name: str, *, frees_space: bool = False) -> AsyncIterator[None]:
        """Like `turn`, but waits for `TURN_SECONDS` at most. Raises `BoxConflict`. The body may take longer."""
        limit = time_limit(TURN_SECONDS)
        try:
            async with limit, self.turn(name, frees_space=frees_space):
                limit.reschedule(None)
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            what = name.replace("/", " ", 1)
            raise BoxConflict(f"another caller has been using {what} for {TURN_SECONDS:g} s") from None

    async def _take(self, name: str, *, frees_space: bool = False) -> bool:
        self._held.add(name)  # before the call, because a cancelled call may still have taken the lease
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

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            try:
                await self._rows.renew(self._tenant, tuple(self._held), self.holder, self._clock(), LEASE)
                await self._take(_PROCESS + self.holder)  # another process may have removed it as expired
            except Exception as error:  # the store is full or locked: the next beat may succeed
                log.warning("cannot renew the leases of boxes: %s", error)
