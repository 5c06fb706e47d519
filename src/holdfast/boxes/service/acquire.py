"""Finds or creates the box of a key, as `acquire_rules` decides. Concurrent callers get the same box."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from holdfast.api.box.records import BoxState, Owner
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import BoxSpec, Lifetime, check_labels
from holdfast.api.errors.boxes import BoxConflict, BoxGone, BoxUnreachable, InvalidSpec, SnapshotNotFound, WrongSnapshot
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import BASE, BASE_LOST, KEY, TENANT
from holdfast.boxes.lifecycle import ASLEEP
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.acquire_rules import (
    Acquired,
    BaseFiles,
    Create,
    Finish,
    Found,
    How,
    MarkGone,
    Replace,
    Restore,
    Resume,
    Start,
    decide,
    with_lifetime_of,
)
from holdfast.boxes.service.creation import Creation
from holdfast.boxes.service.idle.hibernation import Hibernation
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.network_update import NetworkUpdate
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry, keeps_changing
from holdfast.boxes.service.removal import Removal
from holdfast.boxes.service.states import BoxStates
from holdfast.time_limit import time_limit

_TRIES: Final = 20


class Acquire:
    """Acquires boxes by key for one service."""

    def __init__(
        self,
        registry: Registry,
        providers: Providers,
        leases: Leases,
        states: BoxStates,
        hibernation: Hibernation,
        removal: Removal,
        creation: Creation,
        network_update: NetworkUpdate,
    ) -> None:
        self._registry = registry
        self._providers = providers
        self._leases = leases
        self._states = states
        self._hibernation = hibernation
        self._removal = removal
        self._creation = creation
        self._network_update = network_update

    async def acquire(
        self,
        key: str,
        spec: BoxSpec,
        owner: Owner,
        timeout: float,
        *,
        fresh: bool = False,
        replaces: bool = True,
        base: BaseFiles | None = None,
        start: str | None = None,
    ) -> Acquired:
        self._providers.for_spec(spec)
        if not key:
            raise InvalidSpec("the key is empty")
        check_labels({KEY: key})
        await self._registry.join()
        limit = time_limit(timeout)
        try:
            async with limit:
                if fresh:
                    async with self._leases.turn(f"key/{key}"):
                        return await self._acquire_in_turn(key, spec, owner, fresh=True, start=start)
                at_once = await self._resume_at_once(key, spec, base)
                return at_once or await self._acquire(key, spec, owner, replaces, base, start)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BoxUnreachable(
                f"the box of key {key} was not ready within {timeout:g} s",
                hint="try again: anything partly created has been cleaned up",
            ) from None

    async def _resume_at_once(self, key: str, spec: BoxSpec, base: BaseFiles | None) -> Acquired | None:
        """Handles the common case without a lease: a running box with the same spec."""
        row = await self._registry.of_key(key)
        if row is None or row.state is not BoxState.RUNNING or row.spec.hash != spec.hash:
            return None
        if _is_stale(row, base):
            return None
        if with_lifetime_of(row.spec, spec) != row.spec or row.node != self._registry.node:
            return None
        liveness, power = await self._states.look(row)
        if not isinstance(decide(Found(row, liveness=liveness, power=power), spec), Resume):
            return None
        now = self._registry.clock()
        if not await self._registry.rows.touch(self._registry.tenant, row.id, BoxState.RUNNING, now):
            return None  # another caller is deleting it
        return Acquired(replace(row, last_active_at=now), How.RESUMED, why="it was there")

    async def _acquire(
        self, key: str, spec: BoxSpec, owner: Owner, replaces: bool, base: BaseFiles | None, start: str | None
    ) -> Acquired:
        if spec.lifetime is Lifetime.ONE_SHOT:
            return await self._acquire_in_turn(key, spec, owner, start=start)
        async with self._leases.turn(f"key/{key}"):
            at_once = await self._resume_at_once(key, spec, base)
            return at_once or await self._acquire_in_turn(key, spec, owner, replaces=replaces, base=base, start=start)

    async def _acquire_in_turn(
        self,
        key: str,
        spec: BoxSpec,
        owner: Owner,
        *,
        fresh: bool = False,
        replaces: bool = True,
        base: BaseFiles | None = None,
        start: str | None = None,
    ) -> Acquired:
        provider = self._providers.named(spec.provider)
        found = await self._found(key, spec, base)
        replaced: str | None = None
        whys: list[str] = []
        for _ in range(_TRIES):
            match decide(found, spec, fresh=fresh, replaces=replaces):
                case Resume(row):
                    row = await self._take_up(await self._with_network(row, spec), spec)
                    return Acquired(row, How.RESUMED, why="it was there")
                case Start(row):
                    slept = row.state
                    row = await self._with_network(row, spec)  # first, so that nothing runs under the old policy
                    if slept in ASLEEP:
                        row = await self._take_up(await self._hibernation.wake(row.id), spec)
                        return Acquired(row, How.RESUMED, why=f"it was {slept} and has been woken")
                    try:
                        row = await self._take_up(await self._states.start(row), spec)
                    except BoxGone:  # its start has failed for good: decide again
                        whys.append(f"box {row.id} could not be started and is gone")
                    else:
                        return Acquired(row, How.RESUMED, why="it was stopped and has been started")
                case MarkGone(row, why):
                    await self._registry.end(row, BoxState.GONE, why)
                    whys.append(f"box {row.id} is gone")
                case Finish(row, why):
                    with suppress(BoxConflict):  # the row has changed: decide again
                        await self._removal.remove_judged(row, why)
                case Replace(row) as decision:
                    with suppress(BoxConflict):
                        await self._removal.remove_judged(row, f"replaced: {decision.why}")
                        replaced = row.id
                        whys.append(decision.why)
                case Restore(snapshot, required):
                    row = self._registry.new_row(spec, owner, key=key, snapshot=snapshot.id)
                    if base is not None:
                        row = replace(row, labels={**row.labels, BASE: base.id})
                    try:
                        row = await self._creation.restored(row, provider, snapshot.id)
                    except (WrongSnapshot, SnapshotNotFound) as error:
                        if required:
                            raise
                        if base is not None:  # a later snapshot of this box is damaged: the first one is left
                            whys.append(f"snapshot {snapshot.id} could not be restored ({error})")
                            found = Found(base=await _first(provider, base))
                            continue
                        whys.append(f"snapshot {snapshot.id} could not be restored ({error}), so the box starts empty")
                        found = Found()
                        continue
                    whys.append(f"restored from snapshot {snapshot.id}")
                    return Acquired(row, How.RESTORED, replaced, "; ".join(whys))
                case Create() if base is not None:
                    whys.append(f"snapshot {base.snapshot} with its files is gone, so they are lost")
                    row = self._registry.new_row(spec, owner, key=key, snapshot=start)
                    row = replace(row, labels={**row.labels, BASE: base.id, BASE_LOST: "yes"})
                    if start is None:
                        create = partial(provider.create, spec, id=row.id, labels=row.labels)
                        row = await self._creation.make(row, provider, create)
                    else:
                        row = await self._creation.restored(row, provider, start)
                    return Acquired(row, How.CREATED, replaced, "; ".join(whys))
                case Create():
                    row = await self._creation.fresh(spec, owner, key, provider, start)
                    return Acquired(row, How.CREATED, replaced, "; ".join(whys) or "there was none")
            found = await self._found(key, spec, base)
        raise keeps_changing(f"the box of key {key}")

    async def _found(self, key: str, spec: BoxSpec, base: BaseFiles | None) -> Found:
        row = None
        if spec.lifetime is not Lifetime.ONE_SHOT:
            row = await self._registry.of_key(key) or await self._adopt_of(key, spec)
        if row is None:
            return await self._to_start_from(key, spec, base)
        self._registry.check_here(row)
        wait = 0.005
        while await self._registry.is_being_changed(row):
            await asyncio.sleep(wait)  # another process is reaping, stopping or starting it; `acquire` bounds the wait
            wait = min(wait * 2, 0.1)
            row = await self._registry.of_key(key)
            if row is None:
                return await self._to_start_from(key, spec, base)
        if row.state in (BoxState.CREATING, BoxState.DELETING):
            return Found(row, abandoned=True)
        liveness, power = await self._states.look(row)
        network_live = Capability.NETWORK_LIVE in self._providers.of(row).capabilities
        return Found(row, liveness=liveness, power=power, network_live=network_live, stale=_is_stale(row, base))

    async def _to_start_from(self, key: str, spec: BoxSpec, base: BaseFiles | None) -> Found:
        if base is None:
            return Found(snapshot=await self._latest(key, spec))
        provider = self._providers.for_spec(spec, Capability.SNAPSHOTS)
        # Of the snapshots of this key, only those count that were taken since the box started from these files.
        return Found(snapshot=await self._latest(key, spec, {BASE: base.id}), base=await _first(provider, base))

    async def _latest(self, key: str, spec: BoxSpec, more: Mapping[str, str] | None = None) -> Snapshot | None:
        provider = self._providers.named(spec.provider)
        if Capability.SNAPSHOTS not in provider.capabilities:
            return None
        found = await provider.snapshots({KEY: key, TENANT: self._registry.tenant, **(more or {})})
        return max(found, key=lambda each: (each.created_at, each.id), default=None)

    async def _adopt_of(self, key: str, spec: BoxSpec) -> BoxRow | None:
        """Adopts a box of this key that the provider has but this store does not know."""
        for info in await self._providers.named(spec.provider).find({KEY: key, TENANT: self._registry.tenant}):
            if info.spec.lifetime is not Lifetime.ONE_SHOT and await self._registry.find(info.id) is None:
                return await self._registry.adopt(info, key)
        return None

    async def _with_network(self, row: BoxRow, wanted: BoxSpec) -> BoxRow:
        """Gives the box the network policy that its latest caller asked for."""
        if row.spec.network == wanted.network:
            return row
        return await self._network_update.set(row.id, wanted.network)

    async def _take_up(self, row: BoxRow, wanted: BoxSpec) -> BoxRow:
        """Marks the box as active, with the lifetime that its latest caller asked for."""

        def taken_up(current: BoxRow) -> BoxRow:
            spec = with_lifetime_of(current.spec, wanted)
            now = self._registry.clock()
            changed = current.changed_at if current.state is BoxState.RUNNING else now
            return replace(
                current, spec=spec, state=BoxState.RUNNING, changed_at=changed, last_active_at=now, holder=None
            )

        return self._registry.remember(await self._registry.swap(row, taken_up))


async def _first(provider: Provider, base: BaseFiles) -> Snapshot | None:
    """Returns the snapshot that a box has to start from, or None if it is gone and not required."""
    try:
        return await provider.snapshot(base.snapshot)
    except SnapshotNotFound:
        if base.required:
            raise
        return None


def _is_stale(row: BoxRow, base: BaseFiles | None) -> bool:
    return base is not None and row.labels.get(BASE) != base.id
