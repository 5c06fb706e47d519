"""Pauses and hibernates boxes, and wakes them at the next request. A hibernated box is stopped, with a snapshot.

`idleness` decides when a box falls asleep, and the sweep calls this module. Concurrent requests wake a box once.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final

from holdfast.api.box.box import Box, Liveness
from holdfast.api.box.records import BoxState
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.errors.boxes import BoxConflict, BoxUnreachable
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.lifecycle import ASLEEP, DORMANT
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idle.idleness import Activity
from holdfast.boxes.service.idle.sleep_snapshots import SleepSnapshots
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.service.states import BoxStates, gone
from holdfast.boxes.shielded import settled, to_the_end
from holdfast.time_limit import time_limit

WAKE_SECONDS: Final = 60.0
"""How long a box may take to wake."""
_FIRST_WAIT: Final = 0.005
_LONGEST_WAIT: Final = 0.1

log = logging.getLogger(__name__)


class Hibernation:
    """Pauses, hibernates and wakes the boxes of one service."""

    def __init__(
        self,
        registry: Registry,
        providers: Providers,
        leases: Leases,
        activity: Activity,
        states: BoxStates,
        sleep_snapshots: SleepSnapshots,
    ) -> None:
        self._registry = registry
        self._providers = providers
        self._leases = leases
        self._activity = activity
        self._states = states
        self._sleep_snapshots = sleep_snapshots

    # --- falling asleep ---

    async def hibernate(self, row: BoxRow) -> BoxRow:
        """Stop a box and take a snapshot of it. Raises `BoxConflict` if it was used since its row was read."""
        provider = self._able(row, Capability.STOP)
        async with self._leases.alone(f"box/{row.id}"):
            with self._registry.at_work(row.id):
                row = await self._begin(row, BoxState.HIBERNATING)
                async with self._states.settling(row):
                    async with await provider.attach(row.id) as box:
                        # Stopped first: the snapshot of a stopped box copies nothing, and no file changes meanwhile.
                        await box.stop()
                        await self._sleep_snapshots.take(box, row)
                    return await self._registry.move(row, BoxState.HIBERNATED)

    async def pause(self, row: BoxRow) -> BoxRow:
        """Freeze the processes of a box. Raises `BoxConflict` if it was used since its row was read.

        The row is written first. If this process dies then, the next sweep corrects the row.
        """
        provider = self._able(row, Capability.PAUSE)
        async with self._leases.alone(f"box/{row.id}"):
            with self._registry.at_work(row.id):
                row = await self._begin(row, BoxState.PAUSED)
                async with self._states.settling(row):
                    async with await provider.attach(row.id) as box:
                        await box.pause()
                        if (await self._registry.get(row.id)).state is not BoxState.PAUSED:
                            await box.start()  # another process woke it before it was paused
                    return row

    def _able(self, row: BoxRow, capability: Capability) -> Provider:
        provider = self._providers.of(row)
        require(provider.name, provider.capabilities, capability)
        return provider

    async def _begin(self, row: BoxRow, to: BoxState) -> BoxRow:
        after = await self._registry.move_unused(row, to)
        if self._activity.is_working(row.id):
            # They saw it awake, a moment before they could have seen this. Whoever comes from now on wakes it.
            await to_the_end(settled(asyncio.ensure_future(self._states.settle(after))))
            raise BoxConflict(f"box {row.id} is in use")
        return after

    # --- waking ---

    async def open(self, id: str) -> Box:
        """Returns a handle, which the caller closes. Wakes a sleeping box, now and when the handle is used later.

        A stopped box stays stopped.
        """
        row = await self._registry.get_live(id)
        if row.state in DORMANT:
            row = await self.wake(id)
        return await self._states.attach(row, wake=partial(self._is_woken, id))

    async def _is_woken(self, id: str) -> bool:
        return (await self.wake(id)).state is BoxState.RUNNING

    async def wake(self, id: str) -> BoxRow:
        """Wake a sleeping box. Does nothing if it is awake or stopped. Returns its row."""
        await self._registry.join()
        limit = time_limit(WAKE_SECONDS)
        try:
            async with limit, self._leases.alone(f"box/{id}"):
                return await self._wake_in_turn(id)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BoxUnreachable(f"box {id} did not wake within {WAKE_SECONDS:g} s", hint="try again") from None

    async def _wake_in_turn(self, id: str) -> BoxRow:
        wait = _FIRST_WAIT
        while True:  # bounded by the caller
            row = await self._registry.get_live(id)
            self._registry.check_here(row)
            if not await self._registry.is_being_changed(row):
                try:
                    row = await self._states.settle_for_use(row)
                    return row if row.state not in ASLEEP else await self.rouse(row)
                except BoxConflict:
                    pass  # another process changed the box first
            await asyncio.sleep(wait)
            wait = min(wait * 2, _LONGEST_WAIT)

    async def rouse(self, row: BoxRow) -> BoxRow:
        """Wake a sleeping box. The caller holds the lock of the box."""
        if await self._providers.of(row).probe(row.id) is not Liveness.GONE:
            woken = await self._states.switch(row, BoxState.WAKING, BoxState.RUNNING, lambda box: box.start())
            return self._registry.remember(woken)
        snapshot = await self._sleep_snapshots.of(row)
        if snapshot is None:
            await self._registry.end(row, BoxState.GONE, f"{row.provider} no longer has it")
            raise gone(row)
        return self._registry.remember(await self._restore(row, snapshot))

    async def _restore(self, row: BoxRow, snapshot: Snapshot) -> BoxRow:
        """Restores a box whose files were lost from the snapshot that it hibernated with."""
        provider = self._providers.of(row)
        with self._registry.at_work(row.id):
            row = await self._registry.move(row, BoxState.WAKING)
            async with self._states.settling(row):
                box = await provider.restore(snapshot.id, row.spec, id=row.id, labels=row.labels)
                await box.close()
                log.warning("box %s had lost its files and was restored from snapshot %s", row.id, snapshot.id)
                active = max(self._registry.clock(), row.last_active_at)
                return await self._registry.move(row, BoxState.RUNNING, snapshot=snapshot.id, last_active_at=active)
