"""All boxes of one tenant on one store: made, acquired by key, stopped, started, deleted, and swept up after.

Every change is written down before it is begun, and again when it is done: whatever dies in between leaves a row that
the next sweep, of any process on the store, can finish.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from holdfast.boxes.box import Box, BoxInfo, Deleted, Liveness, Power
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.errors import BoxConflict, BoxGone, BoxNotFound, BoxUnreachable, Unsupported
from holdfast.boxes.labels import Owner
from holdfast.boxes.lifecycle import ASLEEP, DORMANT, PASSING, BoxState, move, state_of
from holdfast.boxes.network_policy import NetworkPolicy
from holdfast.boxes.provider import Provider, Volume
from holdfast.boxes.rows import BoxFilter, BoxPage, BoxRow, BoxRows
from holdfast.boxes.service.acquire import Acquire
from holdfast.boxes.service.acquire_rules import Acquired
from holdfast.boxes.service.activity import Activity
from holdfast.boxes.service.creation import Creation
from holdfast.boxes.service.hibernation import Hibernation
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.network_update import NetworkUpdate
from holdfast.boxes.service.pool import Pool, PoolSettings
from holdfast.boxes.service.reaper import is_abandoned
from holdfast.boxes.service.snapshot_store import SnapshotStore
from holdfast.boxes.service.sweep import Pruned, Sweep
from holdfast.boxes.shielded import settled, to_the_end
from holdfast.boxes.snapshots import Snapshot
from holdfast.boxes.spec import BoxSpec, Lifetime, OnIdle
from holdfast.threads.ids import now_ms
from holdfast.time_limit import time_limit

TURN_SECONDS: Final = 60.0
"""How long somebody else may be at a key before we say so."""
_ANYBODY: Final = Owner()
_NO_POOL: Final = PoolSettings()
_TRIES: Final = 20


class Boxes:
    """Owns its sweep, pool and leases, from `start` (or first use) to `close`; not its rows, and not its providers."""

    def __init__(
        self,
        rows: BoxRows,
        providers: Mapping[str, Provider],
        *,
        node: str,
        tenant: str = "default",
        clock: Callable[[], int] = now_ms,
        sweep_seconds: float = 30.0,
        pool: PoolSettings = _NO_POOL,
    ) -> None:
        self.rows = rows
        self.providers = dict(providers)
        self.node = node
        self.tenant = tenant
        self.clock = clock
        self.leases = Leases(rows, tenant, clock)
        self.busy: Counter[str] = Counter()
        """Boxes whose state this process is changing right now."""
        self._sweep_seconds = sweep_seconds
        self._sweep = Sweep(self)
        self.pool = Pool(self, pool)
        self.creation = Creation(self)
        self.acquisition = Acquire(self)
        self.snapshot_store = SnapshotStore(self)
        self.network_update = NetworkUpdate(self)
        self.activity = Activity(rows, tenant, clock, self._sweep.end_one_shot)
        self.hibernation = Hibernation(self)
        self._since: int | None = None
        self._sweeper: asyncio.Task[None] | None = None

    # --- from start to end ---

    async def start(self) -> None:
        """Clean up after whoever died, then keep doing so."""
        await self.sweep()
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._keep_sweeping(), name="box sweep")

    async def close(self) -> None:
        """End what this service does by itself. Boxes live on. Closing twice does nothing."""
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)
        await self.activity.close()
        await self.pool.close()
        await self.leases.close()

    async def _keep_sweeping(self) -> None:
        while True:
            await self._sweep.rest(self._sweep_seconds)
            try:
                await self.sweep()
            except Exception as error:  # the store is full or locked: the next sweep may do better
                self._sweep.complain("sweep", error)

    async def join(self) -> int:
        """Show others that we are alive. Says since when this store knows of the boxes of this node."""
        await self.leases.join()
        if self._since is None:
            self._since = await self.rows.join(self.tenant, self.node, self.clock())
        return self._since

    @property
    def joined(self) -> bool:
        """Whether this service was ever used."""
        return self._since is not None

    def provider(self, name: str) -> Provider:
        """Raises `Unsupported` where there is none of that name."""
        try:
            return self.providers[name]
        except KeyError:
            known = ", ".join(sorted(self.providers)) or "none"
            raise Unsupported(f"there is no provider {name}", hint=f"use one of those there are: {known}") from None

    # --- making ---

    async def create(self, spec: BoxSpec, *, owner: Owner = _ANYBODY, id: str | None = None) -> BoxRow:
        """Make a box. What fails leaves nothing but a tombstone that says why."""
        return await self.creation.create(spec, owner, id)

    async def restore(self, snapshot: str, spec: BoxSpec | None = None, *, owner: Owner = _ANYBODY) -> BoxRow:
        """Make a box that begins with a snapshot's files, as the box that it was taken of, or by another spec."""
        return await self.creation.restore(snapshot, spec, owner)

    async def fork(
        self, id: str, *, owner: Owner | None = None, key: str | None = None, idle_seconds: int | None = None
    ) -> BoxRow:
        """Another box with the same spec and files, of no key or of one that has no box yet. Serves the same owner,
        unless told otherwise. With `idle_seconds` it is ephemeral, whatever the first one is."""
        return await self.creation.fork(id, owner, key, idle_seconds)

    async def acquire(
        self,
        key: str,
        spec: BoxSpec,
        *,
        owner: Owner = _ANYBODY,
        timeout: float = TURN_SECONDS,
        fresh: bool = False,
        replaces: bool = True,
    ) -> Acquired:
        """The box of a key: the one there is, or the latest snapshot's, or a new one. All who ask at once get one box.

        A box of another spec is replaced, and `replaced` and `why` say so; not `replaces`: that is a `BoxDiffers`.
        One-shot boxes are always new. `fresh`: the box that there is gets deleted, and the new one begins with no
        snapshot of it.
        """
        return await self.acquisition.acquire(key, spec, owner, timeout, fresh=fresh, replaces=replaces)

    async def adopt(self, info: BoxInfo) -> BoxRow:
        """Write a box into the store that only its provider knew."""
        return await self.acquisition.adopt(info)

    async def set_network(self, id: str, policy: NetworkPolicy) -> BoxRow:
        """Change what a box may reach, from now on."""
        return await self.network_update.set(id, policy)

    # --- looking ---

    async def get(self, id: str) -> BoxRow:
        """A box, dead or alive. Raises `BoxNotFound`."""
        row = await self.rows.get(self.tenant, id)
        if row is None:
            raise BoxNotFound(f"there is no box {id}")
        return self.remember(row)

    async def open(self, id: str) -> Box:
        """A handle on a box, running or stopped. Close it when done.

        One that sleeps is woken, now and by what is asked of the handle later; what somebody stopped stays so.
        """
        row = await self.live(id)
        if row.state in DORMANT:
            row = await self.hibernation.wake(id)
        box = await self._attach(row)
        box.wake = partial(self._wake, id)
        return box

    async def _wake(self, id: str) -> bool:
        return (await self.hibernation.wake(id)).state is BoxState.RUNNING

    async def peek(self, id: str) -> Box:
        """A handle to look at a box with, which wakes nothing. Close it when done."""
        return await self._attach(await self.live(id))

    async def _attach(self, row: BoxRow) -> Box:
        self.here(row)
        provider = self.provider(row.provider)
        try:
            return await provider.attach(row.id)
        except (BoxNotFound, BoxGone):
            if await provider.probe(row.id) is not Liveness.GONE:
                raise
            await self.hibernation.lost(row)
            raise BoxGone(f"box {row.id} is gone: {row.provider} has it no more") from None

    async def live(self, id: str) -> BoxRow:
        row = await self.get(id)
        if row.tombstone:
            raise BoxGone(f"box {id} is {row.state}" + (f": {row.ended_why}" if row.ended_why else ""))
        if row.state is BoxState.DELETING:
            raise BoxGone(f"box {id} is being deleted")
        if row.state is BoxState.CREATING:
            raise BoxConflict(f"box {id} is being made", hint="try again in a moment")
        return row

    def here(self, row: BoxRow) -> None:
        """Raise where the box is another node's: our providers could not tell whether it lives."""
        if row.node != self.node:
            raise BoxUnreachable(f"box {row.id} is on node {row.node}, this is {self.node}", hint="ask that node")

    async def look(self, row: BoxRow) -> tuple[Liveness, Power | None]:
        """What the provider says of a box, and whether it runs. What cannot be told is unknown."""
        provider = self.provider(row.provider)
        liveness = await provider.probe(row.id)
        if liveness is not Liveness.LIVE:
            return liveness, None
        try:
            async with await provider.attach(row.id) as box:
                return Liveness.LIVE, await box.power()
        except BoxUnreachable:
            return Liveness.UNKNOWN, None
        except (BoxGone, BoxNotFound):
            return await provider.probe(row.id), None

    def remember(self, row: BoxRow) -> BoxRow:
        self.activity.remember(row)
        self._sweep.heed(row)
        return row

    # --- stop, start, delete ---

    async def stop(self, id: str) -> BoxRow:
        """End everything in it; files stay. One that is stopped stays so."""
        async with self.leases.alone(f"box/{id}"):
            row = await self._settled_row(id, Capability.STOP)
            if row.state is BoxState.STOPPED:
                return row
            if row.state is BoxState.HIBERNATED:
                return await self.move(row, BoxState.STOPPED)
            return await self.switch(row, BoxState.STOPPING, BoxState.STOPPED, lambda box: box.stop())

    async def start_box(self, id: str) -> BoxRow:
        """Start a stopped box on its files, or wake one that sleeps. One that runs goes on."""
        async with self.leases.alone(f"box/{id}"):
            row = await self._settled_row(id, Capability.STOP)
            if row.state in ASLEEP:
                return await self.hibernation.rouse(row)
            return row if row.state is BoxState.RUNNING else await self.power_up(row)

    async def pause(self, id: str) -> BoxRow:
        """Hold every process, until the next request. Raises `BoxConflict` where somebody is at work in it."""
        row = await self._settled_row(id, Capability.PAUSE)
        return row if row.state is BoxState.PAUSED else await self.hibernation.pause(row)

    async def hibernate(self, id: str) -> BoxRow:
        """Take a snapshot and stop, until the next request. Raises `BoxConflict` where somebody is at work in it."""
        row = await self._settled_row(id, Capability.STOP)
        return row if row.state is BoxState.HIBERNATED else await self.hibernation.hibernate(row)

    async def power_up(self, row: BoxRow) -> BoxRow:
        row = await self.settle(row)
        if row.state is BoxState.RUNNING:
            return row
        return await self.switch(row, BoxState.STARTING, BoxState.RUNNING, lambda box: box.start())

    async def _settled_row(self, id: str, capability: Capability) -> BoxRow:
        row = await self.live(id)
        self.here(row)
        require(row.provider, self.provider(row.provider).capabilities, capability)
        await self.join()
        if row.state in PASSING and not is_abandoned(row, await self.leases.holders(), self.leases.holder, self.busy):
            raise BoxConflict(f"box {id} is {row.state}", hint="somebody else is at it: try again in a moment")
        row = await self.settle(row)
        if row.tombstone:
            raise BoxGone(f"box {id} is gone: {row.provider} has it no more")
        if row.state in PASSING:
            raise BoxUnreachable(f"box {id} does not answer", hint="try again in a moment")
        return row

    async def settle(self, row: BoxRow) -> BoxRow:
        """Make the row say what is: running, stopped or gone. Where nobody can tell, it stays as it was."""
        liveness, power = await self.look(row)
        if liveness is Liveness.GONE:
            return await self.hibernation.lost(row)
        if liveness is Liveness.UNKNOWN or power is None or row.state is state_of(power, row.state):
            return row
        return await self.move(row, state_of(power, row.state))

    async def switch(
        self, row: BoxRow, passing: BoxState, to: BoxState, work: Callable[[Box], Awaitable[None]]
    ) -> BoxRow:
        """Bring a box from one settled state to another."""
        with self.at_work(row.id):
            row = await self.move(row, passing)
            try:
                async with await self.provider(row.provider).attach(row.id) as box:
                    await work(box)
                return await self.move(row, to, last_active_at=self.clock())
            except BaseException:
                # However far it came: the row says what is. Where that fails too, the sweep will find out.
                await to_the_end(settled(asyncio.ensure_future(self.settle(row))))
                raise

    async def delete(self, id: str) -> Deleted:
        """Remove the box and everything of its own; says how much that freed. A box that is no more stays as it was."""
        row = await self.get(id)
        if row.tombstone:
            return Deleted(row.freed or 0)
        self.here(row)
        await self.join()
        if row.key is None or row.lifetime is Lifetime.ONE_SHOT:
            async with self.leases.alone(f"box/{id}"):
                return Deleted((await self.remove(row, "deleted")).freed or 0)
        limit = time_limit(TURN_SECONDS)
        try:
            async with limit, self.leases.turn(f"key/{row.key}", frees_space=True):
                limit.reschedule(None)  # the wait is bounded, the deletion is the provider's to bound
                return Deleted((await self.remove(row, "deleted")).freed or 0)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BoxConflict(f"somebody else has been at key {row.key} for {TURN_SECONDS:g} s") from None

    async def remove(self, row: BoxRow, why: str) -> BoxRow:
        """Delete a box in whatever state it is, unless somebody who is alive is making it. Gives its tombstone.

        For whoever wants this box gone. What was judged by its row is deleted by `remove_judged`.
        """
        provider = self.provider(row.provider)
        with self.at_work(row.id):
            for _ in range(_TRIES):
                if row.state is BoxState.DELETING:
                    freed = await provider.remove(row.id)
                    if row.spec.when_idle is OnIdle.HIBERNATE:
                        freed += await self.hibernation.forget(row)
                    return await self.end(row, BoxState.DELETED, row.ended_why or why, freed)
                if row.state is BoxState.CREATING:
                    others = await self.leases.holders() - {self.leases.holder}
                    if row.holder in others or self.busy[row.id] > 1:
                        raise BoxConflict(f"box {row.id} is being made", hint="try again in a moment")
                try:
                    row = await self.move(row, BoxState.DELETING, ended_why=why)
                except BoxConflict:
                    row = await self.get(row.id)  # somebody moved it meanwhile
                    if row.tombstone:
                        return row
        raise BoxConflict(f"box {row.id} keeps changing under our hands", hint="try again in a moment")

    async def remove_judged(self, row: BoxRow, why: str) -> BoxRow:
        """Delete a box that was judged by its row. Raises `BoxConflict` where the row has changed since it was read."""
        with self.at_work(row.id):
            return await self.remove(await self._claim(row, why), why)

    async def _claim(self, row: BoxRow, why: str) -> BoxRow:
        if row.state is not BoxState.DELETING:  # else somebody died while deleting it: the deletion is ours now
            move(row.state, BoxState.DELETING)
        after = replace(
            row,
            state=BoxState.DELETING,
            changed_at=self.clock(),
            ended_why=row.ended_why or why,
            holder=self.leases.holder,
        )
        await self.rows.swap(row, after)
        return after

    async def remove_stranger(self, info: BoxInfo, why: str) -> BoxRow:
        """Delete a box that only its provider knows. Raises `BoxConflict` where somebody wrote it down meanwhile.

        Its row comes first, as one that is being deleted: whoever would adopt or hand out the box finds it taken.
        """
        with self.at_work(info.id):
            now = self.clock()
            row = BoxRow(
                id=info.id,
                tenant=self.tenant,
                node=self.node,
                provider=info.provider,
                key=None,  # the key's box is another one
                spec=info.spec,
                labels=dict(info.labels),
                state=BoxState.DELETING,
                created_at=info.created_at,
                changed_at=now,
                last_active_at=now,
                ended_why=why,
                snapshot=info.snapshot,
                holder=self.leases.holder,
            )
            await self.rows.insert(row)
            return await self.remove(row, why)

    # --- rows ---

    async def move(self, row: BoxRow, to: BoxState, **changes: Any) -> BoxRow:
        """Write the next state of a box. Raises `BoxConflict` where somebody else moved it."""
        move(row.state, to)

        def moved(current: BoxRow) -> BoxRow:
            holder = self.leases.holder if to in PASSING else None
            return replace(current, state=to, changed_at=self.clock(), holder=holder, **changes)

        return await self.swap(row, moved)

    async def end(self, row: BoxRow, to: BoxState, why: str, freed: int | None = None) -> BoxRow:
        """Make the row a tombstone. One that is one already stays as it is."""
        try:
            ended = await self.move(row, to, ended_at=self.clock(), ended_why=why, freed=freed)
        except BoxConflict:
            current = await self.get(row.id)
            if not current.tombstone:
                raise
            return current
        return self.remember(ended)

    async def swap(self, row: BoxRow, change: Callable[[BoxRow], BoxRow]) -> BoxRow:
        """Change a row that is in the state we think it is. Activity noted meanwhile is no reason to give up."""
        for _ in range(_TRIES):
            after = change(row)
            try:
                await self.rows.swap(row, after)
                return after
            except BoxConflict:
                current = await self.rows.get(self.tenant, row.id)
                if current is None or _moved(row) != _moved(current):
                    raise
                row = current
        raise BoxConflict(f"box {row.id} keeps changing under our hands", hint="try again in a moment")

    @contextmanager
    def at_work(self, id: str) -> Iterator[None]:
        """While this lasts, the box's passing state is ours; after it, what is left of one is the sweep's."""
        self.busy[id] += 1
        try:
            yield
        finally:
            self.busy[id] -= 1
            if not self.busy[id]:
                del self.busy[id]

    # --- snapshots and volumes ---

    async def snapshot(self, id: str, labels: Mapping[str, str] | None = None) -> Snapshot:
        """Keep the files as they are now. Labelled with the box's key, spec and owner."""
        return await self.snapshot_store.snapshot(id, labels)

    async def snapshots(self, *, box: str | None = None, key: str | None = None) -> list[Snapshot]:
        """The oldest first, of every provider."""
        return await self.snapshot_store.snapshots(box=box, key=key)

    async def delete_snapshot(self, id: str) -> int:
        """Says how many bytes that freed. Raises `SnapshotNotFound`."""
        return await self.snapshot_store.delete_snapshot(id)

    async def volumes(self, provider: str = "local") -> list[Volume]:
        return await self.snapshot_store.volumes(provider)

    async def create_volume(self, name: str, provider: str = "local") -> Volume:
        return await self.snapshot_store.create_volume(name, provider)

    async def delete_volume(self, name: str, provider: str = "local") -> int:
        return await self.snapshot_store.delete_volume(name, provider)

    # --- use ---

    def working(self, id: str) -> AbstractContextManager[None]:
        """Somebody works in the box (a command, a channel, a port): it is not idle. The end of this ends a one-shot."""
        return self.activity.working(id)

    def using(self, id: str) -> AbstractContextManager[None]:
        """Somebody holds on to the box (an upload, a download): it is not idle, but that was not a one-shot's work."""
        return self.activity.using(id)

    def is_working(self, id: str) -> bool:
        return self.activity.is_working(id)

    def has_worked(self, row: BoxRow) -> bool:
        """Whether work in a one-shot has ended: here, or where somebody noted activity after it was made."""
        return self.activity.has_worked(row)

    async def note_activity(self) -> None:
        """Write down what was used since the last time, so that other processes see it too."""
        await self.activity.note_activity()

    # --- sweeping ---

    async def sweep(self) -> Pruned:
        """Reap what is idle, finish what somebody died at, bury what is gone, remove what nobody knows."""
        return await self._sweep.run()

    async def prune(self) -> Pruned:
        """Sweep, and delete every ephemeral box that is stopped or does nothing now."""
        return await self._sweep.prune()

    # Last, so that `list` means the builtin everywhere above.
    async def list(self, wanted: BoxFilter) -> BoxPage:
        """Rows by state, label and key, the newest first."""
        return await self.rows.list(self.tenant, wanted)


def _moved(row: BoxRow) -> tuple[BoxState, int, str | None]:
    """What changes when somebody moves a box to another state, also where it comes back to the same one."""
    return row.state, row.changed_at, row.holder
