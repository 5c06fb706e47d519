"""Boxes that sleep: paused, or hibernated (a snapshot, and stopped), and woken by whoever asks first.

`idleness` decides when a box falls asleep, and the sweep has it done here. Callers that ask for a sleeping box at once
wake it once.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from holdfast.boxes.box import Box, Liveness
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.errors import BoxConflict, BoxGone, BoxUnreachable, SnapshotNotFound
from holdfast.boxes.labels import HIBERNATION, RESERVED
from holdfast.boxes.lifecycle import ASLEEP, DORMANT, PASSING, BoxState, move
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.reaper import is_abandoned
from holdfast.boxes.shielded import settled, to_the_end
from holdfast.boxes.snapshots import Snapshot
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from holdfast.boxes.service.boxes import Boxes

WAKE_SECONDS: Final = 60.0
"""How long a box may take to wake before we say so."""
_FIRST_WAIT: Final = 0.005
_LONGEST_WAIT: Final = 0.1

log = logging.getLogger(__name__)


class Hibernation:
    """The sleep of one service's boxes."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    # --- falling asleep ---

    async def hibernate(self, row: BoxRow) -> BoxRow:
        """Stop a box that nobody used since its row was read, and keep its files by a snapshot as well.

        Raises `BoxConflict` where somebody did use it.
        """
        boxes = self._boxes
        provider = boxes.provider(row.provider)
        require(provider.name, provider.capabilities, Capability.STOP)
        async with boxes.leases.alone(f"box/{row.id}"):
            with boxes.at_work(row.id):
                row = await self._begin(row, BoxState.HIBERNATING)
                try:
                    async with await provider.attach(row.id) as box:
                        # First stopped: where nothing runs, a snapshot has nothing to copy, and nothing moves under it.
                        await box.stop()
                        if Capability.SNAPSHOTS in provider.capabilities:
                            await self._keep(box, row, provider)
                    return await boxes.move(row, BoxState.HIBERNATED)
                except BaseException:
                    # However far it came: the row says what is. Where that fails too, the sweep will find out.
                    await to_the_end(settled(asyncio.ensure_future(boxes.settle(row))))
                    raise

    async def _keep(self, box: Box, row: BoxRow, provider: Provider) -> None:
        """A snapshot of this sleep; that of the one before goes."""
        ours = {name: value for name, value in row.labels.items() if name.startswith(RESERVED)}
        taken = await box.snapshot(labels={**ours, HIBERNATION: row.id})
        await self._forget(row.id, provider, but=taken.id)

    async def pause(self, row: BoxRow) -> BoxRow:
        """Hold the processes of a box that nobody used since its row was read. Raises `BoxConflict` where somebody did.

        The row is first: one that says so of a box that still runs is put right by the next sweep.
        """
        boxes = self._boxes
        provider = boxes.provider(row.provider)
        require(provider.name, provider.capabilities, Capability.PAUSE)
        async with boxes.leases.alone(f"box/{row.id}"):
            with boxes.at_work(row.id):
                row = await self._begin(row, BoxState.PAUSED)
                try:
                    async with await provider.attach(row.id) as box:
                        await box.pause()
                        if (await boxes.get(row.id)).state is not BoxState.PAUSED:
                            await box.start()  # another process woke it before we had it asleep
                    return row
                except BaseException:
                    await to_the_end(settled(asyncio.ensure_future(boxes.settle(row))))
                    raise

    async def _begin(self, row: BoxRow, to: BoxState) -> BoxRow:
        boxes = self._boxes
        move(row.state, to)
        holder = boxes.leases.holder if to is BoxState.HIBERNATING else None
        after = replace(row, state=to, changed_at=boxes.clock(), holder=holder)
        await boxes.rows.swap(row, after)
        if boxes.is_working(row.id):
            # They saw it awake, a moment before they could have seen this. Whoever comes from now on wakes it.
            await to_the_end(settled(asyncio.ensure_future(boxes.settle(after))))
            raise BoxConflict(f"box {row.id} is in use")
        return after

    # --- waking ---

    async def wake(self, id: str) -> BoxRow:
        """The row of a box that slept, and is awake now. One that is awake, or was stopped by somebody, stays so."""
        boxes = self._boxes
        await boxes.join()
        limit = time_limit(WAKE_SECONDS)
        try:
            async with limit, boxes.leases.alone(f"box/{id}"):
                return await self._wake_in_turn(id)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BoxUnreachable(f"box {id} did not wake within {WAKE_SECONDS:g} s", hint="try again") from None

    async def _wake_in_turn(self, id: str) -> BoxRow:
        boxes = self._boxes
        wait = _FIRST_WAIT
        while True:  # bounded by who calls
            row = await boxes.live(id)
            boxes.here(row)
            if await self._is_passing(row):
                await asyncio.sleep(wait)  # another process is at it
                wait = min(wait * 2, _LONGEST_WAIT)
                continue
            try:
                row = await boxes.settle(row)
                if row.tombstone:
                    raise BoxGone(f"box {id} is gone: {row.provider} has it no more")
                if row.state in PASSING:
                    raise BoxUnreachable(f"box {id} does not answer", hint="try again in a moment")
                return row if row.state not in ASLEEP else await self.rouse(row)
            except BoxConflict:
                await asyncio.sleep(wait)  # another process was quicker
                wait = min(wait * 2, _LONGEST_WAIT)

    async def _is_passing(self, row: BoxRow) -> bool:
        boxes = self._boxes
        if row.state not in PASSING:
            return False
        return not is_abandoned(row, await boxes.leases.holders(), boxes.leases.holder, boxes.busy)

    async def rouse(self, row: BoxRow) -> BoxRow:
        """Wake a box that sleeps. Its turn is ours."""
        boxes = self._boxes
        if await boxes.provider(row.provider).probe(row.id) is not Liveness.GONE:
            return boxes.remember(await boxes.switch(row, BoxState.WAKING, BoxState.RUNNING, lambda box: box.start()))
        snapshot = await self._snapshot_of(row)
        if snapshot is None:
            await boxes.end(row, BoxState.GONE, f"{row.provider} has it no more")
            raise BoxGone(f"box {row.id} is gone: {row.provider} has it no more")
        return boxes.remember(await self._restore(row, snapshot))

    async def _restore(self, row: BoxRow, snapshot: Snapshot) -> BoxRow:
        """Its files were lost: the snapshot of its sleep has them."""
        boxes = self._boxes
        provider = boxes.provider(row.provider)
        with boxes.at_work(row.id):
            row = await boxes.move(row, BoxState.WAKING)
            try:
                box = await provider.restore(snapshot.id, row.spec, id=row.id, labels=row.labels)
                await box.close()
                log.warning("box %s had lost its files, and has those of snapshot %s again", row.id, snapshot.id)
                return await boxes.move(
                    row, BoxState.RUNNING, snapshot=snapshot.id, last_active_at=max(boxes.clock(), row.last_active_at)
                )
            except BaseException:
                await to_the_end(settled(asyncio.ensure_future(boxes.settle(row))))
                raise

    # --- what is lost, and what is left ---

    async def lost(self, row: BoxRow) -> BoxRow:
        """The provider has the box no more: it is a tombstone, unless it sleeps and its snapshot can bring it back."""
        boxes = self._boxes
        if row.state in DORMANT and await self._snapshot_of(row) is not None:
            return row if row.state is BoxState.HIBERNATED else await boxes.move(row, BoxState.HIBERNATED)
        return await boxes.end(row, BoxState.GONE, f"{row.provider} has it no more")

    async def forget(self, row: BoxRow) -> int:
        """Remove what was kept of the sleep of a box that is deleted; says how many bytes that freed."""
        return await self._forget(row.id, self._boxes.provider(row.provider))

    async def forget_the_dead(self) -> int:
        """The same for boxes whose end nobody got to finish."""
        boxes = self._boxes
        freed = 0
        for snapshot in await boxes.snapshots():
            id = snapshot.labels.get(HIBERNATION)
            if id is None:
                continue
            row = await boxes.rows.get(boxes.tenant, id)
            # One that went without us may have left its only copy here.
            if row is not None and row.state is BoxState.DELETED:
                with suppress(SnapshotNotFound):
                    freed += await boxes.provider(snapshot.provider).delete_snapshot(snapshot.id)
        return freed

    async def _snapshot_of(self, row: BoxRow) -> Snapshot | None:
        provider = self._boxes.provider(row.provider)
        if Capability.SNAPSHOTS not in provider.capabilities:
            return None
        found = await provider.snapshots({HIBERNATION: row.id})
        return max(found, key=lambda each: (each.created_at, each.id), default=None)

    async def _forget(self, id: str, provider: Provider, *, but: str | None = None) -> int:
        if Capability.SNAPSHOTS not in provider.capabilities:
            return 0
        freed = 0
        for each in await provider.snapshots({HIBERNATION: id}):
            if each.id != but:
                with suppress(SnapshotNotFound):
                    freed += await provider.delete_snapshot(each.id)
        return freed
