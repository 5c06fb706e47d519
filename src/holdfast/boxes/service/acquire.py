"""Acquire: the box of a key, as `acquire_rules` decides. All callers that ask at once get one box."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from holdfast.boxes.box import BoxInfo
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.errors import BoxConflict, BoxUnreachable, InvalidSpec, SnapshotNotFound, WrongSnapshot
from holdfast.boxes.labels import KEY, TENANT, Owner
from holdfast.boxes.lifecycle import ASLEEP, PASSING, BoxState, state_of
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.acquire_rules import (
    Acquired,
    Bury,
    Create,
    Finish,
    Found,
    How,
    Replace,
    Restore,
    Resume,
    Start,
    decide,
    with_lifetime_of,
)
from holdfast.boxes.service.reaper import is_abandoned
from holdfast.boxes.snapshots import Snapshot
from holdfast.boxes.spec import BoxSpec, Lifetime, check_labels
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from holdfast.boxes.service.boxes import Boxes

_TRIES: Final = 20

log = logging.getLogger(__name__)


class Acquire:
    """The boxes of keys of one service."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def acquire(
        self, key: str, spec: BoxSpec, owner: Owner, timeout: float, *, fresh: bool = False, replaces: bool = True
    ) -> Acquired:
        self._boxes.creation.check(spec)
        if not key:
            raise InvalidSpec("the key is empty")
        check_labels({KEY: key})
        await self._boxes.join()
        limit = time_limit(timeout)
        try:
            async with limit:
                if fresh:
                    async with self._boxes.leases.turn(f"key/{key}"):
                        return await self._acquire_in_turn(key, spec, owner, fresh=True)
                return await self._resume_at_once(key, spec) or await self._acquire(key, spec, owner, replaces)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BoxUnreachable(
                f"the box of key {key} was not ready within {timeout:g} s",
                hint="try again: what was half made has been cleaned up",
            ) from None

    async def _resume_at_once(self, key: str, spec: BoxSpec) -> Acquired | None:
        """The common case needs no turn: a box that runs, of the same spec."""
        row = await self._boxes.rows.of_key(self._boxes.tenant, key)
        if row is None or row.state is not BoxState.RUNNING or row.spec.hash != spec.hash:
            return None
        if with_lifetime_of(row.spec, spec) != row.spec or row.node != self._boxes.node:
            return None
        liveness, power = await self._boxes.look(row)
        if not isinstance(decide(Found(row, liveness=liveness, power=power), spec), Resume):
            return None
        now = self._boxes.clock()
        if not await self._boxes.rows.touch(self._boxes.tenant, row.id, BoxState.RUNNING, now):
            return None  # somebody was quicker, and is deleting it
        return Acquired(replace(row, last_active_at=now), How.RESUMED, why="it was there")

    async def _acquire(self, key: str, spec: BoxSpec, owner: Owner, replaces: bool) -> Acquired:
        if spec.lifetime is Lifetime.ONE_SHOT:
            return await self._acquire_in_turn(key, spec, owner)
        async with self._boxes.leases.turn(f"key/{key}"):
            at_once = await self._resume_at_once(key, spec)
            return at_once or await self._acquire_in_turn(key, spec, owner, replaces=replaces)

    async def _acquire_in_turn(
        self, key: str, spec: BoxSpec, owner: Owner, *, fresh: bool = False, replaces: bool = True
    ) -> Acquired:
        provider = self._boxes.provider(spec.provider)
        found = await self._found(key, spec)
        replaced: str | None = None
        whys: list[str] = []
        for _ in range(_TRIES):
            match decide(found, spec, fresh=fresh, replaces=replaces):
                case Resume(row):
                    row = await self._take_up(await self._with_network(row, spec), spec)
                    return Acquired(row, How.RESUMED, why="it was there")
                case Start(row):
                    slept = row.state
                    row = await self._with_network(row, spec)  # first: nothing in it may run under the old one
                    if slept in ASLEEP:
                        row = await self._take_up(await self._boxes.hibernation.wake(row.id), spec)
                        return Acquired(row, How.RESUMED, why=f"it was {slept}, and was woken")
                    row = await self._take_up(await self._boxes.power_up(row), spec)
                    return Acquired(row, How.RESUMED, why="it was stopped, and was started")
                case Bury(row, why):
                    await self._boxes.end(row, BoxState.GONE, why)
                    whys.append(f"box {row.id} is gone")
                case Finish(row, why):
                    with suppress(BoxConflict):  # it is another row by now: look again
                        await self._boxes.remove_judged(row, why)
                case Replace(row) as decision:
                    with suppress(BoxConflict):
                        await self._boxes.remove_judged(row, f"replaced: {decision.why}")
                        replaced = row.id
                        whys.append(decision.why)
                case Restore(snapshot):
                    row = self._boxes.creation.new_row(spec, owner, key=key, snapshot=snapshot.id)
                    try:
                        row = await self._boxes.creation.restored(row, provider, snapshot.id)
                    except (WrongSnapshot, SnapshotNotFound) as error:
                        whys.append(f"snapshot {snapshot.id} could not be restored ({error}), so it begins empty")
                        found = Found()
                        continue
                    whys.append(f"restored from snapshot {snapshot.id}")
                    return Acquired(row, How.RESTORED, replaced, "; ".join(whys))
                case Create():
                    row = await self._boxes.creation.fresh(spec, owner, key, provider)
                    return Acquired(row, How.CREATED, replaced, "; ".join(whys) or "there was none")
            found = await self._found(key, spec)
        raise BoxConflict(f"the box of key {key} keeps changing under our hands", hint="try again in a moment")

    async def _found(self, key: str, spec: BoxSpec) -> Found:
        row = None
        if spec.lifetime is not Lifetime.ONE_SHOT:
            row = await self._boxes.rows.of_key(self._boxes.tenant, key) or await self._adopt_of(key, spec)
        if row is None:
            return Found(snapshot=await self._latest(key, spec))
        self._boxes.here(row)
        wait = 0.005
        while row.state in PASSING:
            if is_abandoned(row, await self._boxes.leases.holders(), self._boxes.leases.holder, self._boxes.busy):
                break
            await asyncio.sleep(wait)  # somebody is reaping, stopping or starting it; `acquire` bounds the wait
            wait = min(wait * 2, 0.1)
            row = await self._boxes.rows.of_key(self._boxes.tenant, key)
            if row is None:
                return Found(snapshot=await self._latest(key, spec))
        if row.state in (BoxState.CREATING, BoxState.DELETING):
            return Found(row, abandoned=True)
        liveness, power = await self._boxes.look(row)
        network_live = Capability.NETWORK_LIVE in self._boxes.provider(row.provider).capabilities
        return Found(row, liveness=liveness, power=power, network_live=network_live)

    async def _latest(self, key: str, spec: BoxSpec) -> Snapshot | None:
        provider = self._boxes.provider(spec.provider)
        if Capability.SNAPSHOTS not in provider.capabilities:
            return None
        found = await provider.snapshots({KEY: key, TENANT: self._boxes.tenant})
        return max(found, key=lambda each: (each.created_at, each.id), default=None)

    async def _adopt_of(self, key: str, spec: BoxSpec) -> BoxRow | None:
        """A box of this key that its provider has, and whose row was lost or is in another store."""
        for info in await self._boxes.provider(spec.provider).find({KEY: key, TENANT: self._boxes.tenant}):
            if (
                info.spec.lifetime is not Lifetime.ONE_SHOT
                and await self._boxes.rows.get(self._boxes.tenant, info.id) is None
            ):
                return await self.adopt(info)
        return None

    async def adopt(self, info: BoxInfo) -> BoxRow:
        """Write a box into the store that only its provider knew."""
        now = self._boxes.clock()
        row = BoxRow(
            id=info.id,
            tenant=self._boxes.tenant,
            node=self._boxes.node,
            provider=info.provider,
            key=info.labels.get(KEY),
            spec=info.spec,
            labels=dict(info.labels),
            state=state_of(info.power),
            created_at=info.created_at,
            changed_at=now,
            last_active_at=now,
            snapshot=info.snapshot,
        )
        await self._boxes.rows.insert(row)
        log.info("box %s was found at %s and written into the store", info.id, info.provider)
        return self._boxes.remember(row)

    async def _with_network(self, row: BoxRow, wanted: BoxSpec) -> BoxRow:
        """A box that may reach what its latest acquirer asks for."""
        return (
            row if row.spec.network == wanted.network else await self._boxes.network_update.set(row.id, wanted.network)
        )

    async def _take_up(self, row: BoxRow, wanted: BoxSpec) -> BoxRow:
        """Give a box out again: it counts as active, and lives as long as its latest acquirer asks."""

        def taken_up(current: BoxRow) -> BoxRow:
            spec = with_lifetime_of(current.spec, wanted)
            now = self._boxes.clock()
            changed = current.changed_at if current.state is BoxState.RUNNING else now
            return replace(
                current, spec=spec, state=BoxState.RUNNING, changed_at=changed, last_active_at=now, holder=None
            )

        return self._boxes.remember(await self._boxes.swap(row, taken_up))
