"""All boxes of one tenant on one store: made, acquired by key, stopped, started, deleted, and swept up after.

Every change is written down before it is begun, and again when it is done: whatever dies in between leaves a row that
the next sweep, of any process on the store, can finish.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Final

from holdfast.boxes.acquire import (
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
from holdfast.boxes.box import Box, BoxInfo, Deleted, Liveness, Power
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.endings import nothing, settled, to_the_end
from holdfast.boxes.errors import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxUnreachable,
    CreateFailed,
    InvalidSpec,
    SnapshotNotFound,
    Unsupported,
    WrongSnapshot,
)
from holdfast.boxes.labels import KEY, NODE, RESERVED, SPEC, TENANT, Owner
from holdfast.boxes.lifecycle import PASSING, BoxState, move
from holdfast.boxes.provider import Provider, Volume
from holdfast.boxes.reaper import is_abandoned
from holdfast.boxes.rows import BoxFilter, BoxPage, BoxRow, BoxRows
from holdfast.boxes.snapshots import Snapshot
from holdfast.boxes.spec import BoxSpec, Lifetime, check_labels, check_name
from holdfast.boxes.sweep import Pruned, Sweep
from holdfast.boxes.turns import Turns
from holdfast.threads.ids import new_id, now_ms

TURN_SECONDS: Final = 60.0
"""How long somebody else may be at a key before we say so."""
UNDO_SECONDS: Final = 30.0
"""How long the clean-up of something that failed may take before it is left to the sweep."""
_ANYBODY: Final = Owner()
_TRIES: Final = 20

log = logging.getLogger(__name__)


class Boxes:
    """Owns its sweep and its leases, from `start` (or first use) to `close`; not its rows, and not its providers."""

    def __init__(
        self,
        rows: BoxRows,
        providers: Mapping[str, Provider],
        *,
        node: str,
        tenant: str = "default",
        clock: Callable[[], int] = now_ms,
        sweep_seconds: float = 30.0,
    ) -> None:
        self.rows = rows
        self.providers = dict(providers)
        self.node = node
        self.tenant = tenant
        self.clock = clock
        self.turns = Turns(rows, tenant, clock)
        self.busy: Counter[str] = Counter()
        """Boxes whose state this process is changing right now."""
        self._sweep_seconds = sweep_seconds
        self._sweep = Sweep(self)
        self._since: int | None = None
        self._working: Counter[str] = Counter()
        self._worked: set[str] = set()
        self._active: dict[str, int] = {}
        self._one_shots: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None

    # --- from start to end ---

    async def start(self) -> None:
        """Clean up after whoever died, then keep doing so."""
        await self.sweep()
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._keep_sweeping(), name="box sweep")

    async def close(self) -> None:
        """End what this service does by itself. Boxes live on. Closing twice does nothing."""
        ending = [task for task in (self._sweeper, *self._tasks) if task is not None]
        self._sweeper = None
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await self.turns.close()

    async def _keep_sweeping(self) -> None:
        while True:
            await asyncio.sleep(self._sweep_seconds)
            try:
                await self.sweep()
            except Exception as error:  # the store is full or locked: the next sweep may do better
                self._sweep.complain("sweep", error)

    async def join(self) -> int:
        """Show others that we are alive. Says since when this store knows of the boxes of this node."""
        await self.turns.join()
        if self._since is None:
            self._since = await self.rows.join(self.tenant, self.node, self.clock())
        return self._since

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
        provider = self._check(spec)
        if id is not None:
            check_name(id, "box")
        await self.join()
        row = self._new_row(spec, owner, id=id)
        return await self._make(row, lambda: provider.create(spec, id=row.id, labels=row.labels), named=id is not None)

    async def restore(self, snapshot: str, spec: BoxSpec | None = None, *, owner: Owner = _ANYBODY) -> BoxRow:
        """Make a box that begins with a snapshot's files, as the box that it was taken of, or by another spec."""
        if spec is None:
            taken = await self._snapshot(snapshot)
            was = await self.rows.get(self.tenant, taken.box)
            if was is None:
                raise InvalidSpec(
                    f"nobody remembers box {taken.box}, of which snapshot {snapshot} was taken",
                    hint="say which spec the new box should have",
                )
            spec = replace(was.spec, provider=taken.provider)
        provider = self._check(spec, Capability.SNAPSHOTS)
        await self.join()
        row = self._new_row(spec, owner, snapshot=snapshot)
        return await self._restore(row, provider, snapshot)

    async def fork(self, id: str, *, owner: Owner | None = None) -> BoxRow:
        """Another box with the same spec and files, of no key. Serves the same owner, unless told otherwise."""
        source = await self._live(id)
        require(source.provider, self.provider(source.provider).capabilities, Capability.FORK)
        await self.join()
        row = self._new_row(source.spec, owner or source.owner)

        async def make() -> Box:
            async with await self.open(id) as box:
                return await box.fork(id=row.id, labels=row.labels)

        return await self._make(row, make)

    async def _restore(self, row: BoxRow, provider: Provider, snapshot: str) -> BoxRow:
        return await self._make(row, lambda: provider.restore(snapshot, row.spec, id=row.id, labels=row.labels))

    def _check(self, spec: BoxSpec, *more: Capability) -> Provider:
        """Refuse what cannot be, before anything is made."""
        _refuse_reserved(spec.labels)
        provider = self.provider(spec.provider)
        require(provider.name, provider.capabilities, *needed(spec), *more)
        return provider

    def _new_row(
        self, spec: BoxSpec, owner: Owner, *, id: str | None = None, key: str | None = None, snapshot: str | None = None
    ) -> BoxRow:
        ours = {**replace(owner, tenant=self.tenant).labels(), SPEC: spec.hash, NODE: self.node}
        if key is not None:
            ours[KEY] = key
        check_labels(ours)
        now = self.clock()
        return BoxRow(
            id=id or new_id("b"),
            tenant=self.tenant,
            node=self.node,
            provider=spec.provider,
            key=key,
            spec=spec,
            labels={**spec.labels, **ours},
            state=BoxState.CREATING,
            created_at=now,
            changed_at=now,
            last_active_at=now,
            snapshot=snapshot,
            holder=self.turns.holder,
        )

    async def _make(self, row: BoxRow, make: Callable[[], Awaitable[Box]], *, named: bool = False) -> BoxRow:
        with self.at_work(row.id):
            if named:
                # The name may be somebody else's box: nothing is begun, and nothing undone, before it is ours.
                await self.rows.insert(row)
            try:
                box = await self._made(row, make, inserted=named)
            except BoxConflict:
                if not named:
                    raise
                # The provider has a box of that name which the store does not know: not ours to remove.
                await to_the_end(self.rows.forget(self.tenant, row.id))
                raise
            try:
                info = box.info
                await box.close()
                return self.remember(await self.move(row, BoxState.RUNNING, snapshot=info.snapshot or row.snapshot))
            except BaseException as error:
                await to_the_end(self._undo(row, error))
                raise

    async def _made(self, row: BoxRow, make: Callable[[], Awaitable[Box]], *, inserted: bool) -> Box:
        """The row and the box at the same time, to spare the fsync: both there, or neither."""
        writing = asyncio.ensure_future(nothing() if inserted else self.rows.insert(row))
        making = asyncio.ensure_future(make())
        try:
            # The row is written in any case: as a tombstone it tells of what failed.
            _, box = await asyncio.gather(asyncio.shield(writing), making)
        except BaseException as error:
            making.cancel()
            await to_the_end(settled(making, writing))
            if inserted and isinstance(error, BoxConflict):
                raise
            await to_the_end(self._undo(row, error))
            if isinstance(error, BoxError) or not isinstance(error, Exception):
                raise
            raise CreateFailed(f"the box could not be made: {str(error) or type(error).__name__}") from error
        return box

    async def _undo(self, row: BoxRow, error: BaseException) -> None:
        """Remove what there is of a box that could not be made. What cannot be removed now is left to the sweep."""
        why = "cancelled" if isinstance(error, asyncio.CancelledError) else f"could not be made: {error}"
        current = await self.rows.get(self.tenant, row.id)
        live = current is not None and current.live
        if current is not None and live and current.state is not BoxState.DELETING:
            current = await self.move(current, BoxState.DELETING, ended_why=why)
        try:
            async with asyncio.timeout(UNDO_SECONDS):
                freed = await self.provider(row.provider).remove(row.id)
        except Exception as problem:
            log.warning("box %s could not be removed after a failed create, the sweep will: %s", row.id, problem)
            return
        if current is not None and live:
            await self.end(current, BoxState.DELETED, why, freed)

    # --- acquiring ---

    async def acquire(
        self, key: str, spec: BoxSpec, *, owner: Owner = _ANYBODY, timeout: float = TURN_SECONDS
    ) -> Acquired:
        """The box of a key: the one there is, or the latest snapshot's, or a new one. All who ask at once get one box.

        A box of another spec is replaced, and `replaced` and `why` say so. One-shot boxes are always new.
        """
        self._check(spec)
        if not key:
            raise InvalidSpec("the key is empty")
        check_labels({KEY: key})
        await self.join()
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await self._resume_at_once(key, spec) or await self._acquire(key, spec, owner)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BoxUnreachable(
                f"the box of key {key} was not ready within {timeout:g} s",
                hint="try again: what was half made has been cleaned up",
            ) from None

    async def _resume_at_once(self, key: str, spec: BoxSpec) -> Acquired | None:
        """The common case needs no turn: a box that runs, of the same spec."""
        row = await self.rows.of_key(self.tenant, key)
        if row is None or row.state is not BoxState.RUNNING or row.spec.hash != spec.hash:
            return None
        if with_lifetime_of(row.spec, spec) != row.spec or row.node != self.node:
            return None
        liveness, power = await self.look(row)
        if not isinstance(decide(Found(row, liveness=liveness, power=power), spec), Resume):
            return None
        now = self.clock()
        if not await self.rows.touch(self.tenant, row.id, BoxState.RUNNING, now):
            return None  # somebody was quicker, and is deleting it
        return Acquired(replace(row, last_active_at=now), How.RESUMED, why="it was there")

    async def _acquire(self, key: str, spec: BoxSpec, owner: Owner) -> Acquired:
        if spec.lifetime is Lifetime.ONE_SHOT:
            return await self._acquire_in_turn(key, spec, owner)
        async with self.turns.turn(f"key/{key}"):
            return await self._resume_at_once(key, spec) or await self._acquire_in_turn(key, spec, owner)

    async def _acquire_in_turn(self, key: str, spec: BoxSpec, owner: Owner) -> Acquired:
        provider = self.provider(spec.provider)
        found = await self._found(key, spec)
        replaced: str | None = None
        whys: list[str] = []
        for _ in range(_TRIES):
            match decide(found, spec):
                case Resume(row):
                    row = await self._take_up(row, spec)
                    return Acquired(row, How.RESUMED, why="it was there")
                case Start(row):
                    row = await self._take_up(await self._power_up(row), spec)
                    return Acquired(row, How.RESUMED, why="it was stopped, and was started")
                case Bury(row, why):
                    await self.end(row, BoxState.GONE, why)
                    whys.append(f"box {row.id} is gone")
                case Finish(row, why):
                    await self.remove(row, why)
                case Replace(row) as decision:
                    await self.remove(row, f"replaced: {decision.why}")
                    replaced = row.id
                    whys.append(decision.why)
                case Restore(snapshot):
                    row = self._new_row(spec, owner, key=key, snapshot=snapshot.id)
                    try:
                        row = await self._restore(row, provider, snapshot.id)
                    except (WrongSnapshot, SnapshotNotFound) as error:
                        whys.append(f"snapshot {snapshot.id} could not be restored ({error}), so it begins empty")
                        found = Found()
                        continue
                    whys.append(f"restored from snapshot {snapshot.id}")
                    return Acquired(row, How.RESTORED, replaced, "; ".join(whys))
                case Create():
                    new = self._new_row(spec, owner, key=key)
                    labels = new.labels
                    row = await self._make(new, lambda: provider.create(spec, id=new.id, labels=labels))  # noqa: B023
                    return Acquired(row, How.CREATED, replaced, "; ".join(whys) or "there was none")
            found = await self._found(key, spec)
        raise BoxConflict(f"the box of key {key} keeps changing under our hands", hint="try again in a moment")

    async def _found(self, key: str, spec: BoxSpec) -> Found:
        row = None
        if spec.lifetime is not Lifetime.ONE_SHOT:
            row = await self.rows.of_key(self.tenant, key) or await self._adopt_of(key, spec)
        if row is None:
            return Found(snapshot=await self._latest(key, spec))
        self.here(row)
        wait = 0.005
        while row.state in PASSING:
            if is_abandoned(row, await self.turns.holders(), self.turns.holder, self.busy):
                break
            await asyncio.sleep(wait)  # somebody is reaping, stopping or starting it; `acquire` bounds the wait
            wait = min(wait * 2, 0.1)
            row = await self.rows.of_key(self.tenant, key)
            if row is None:
                return Found(snapshot=await self._latest(key, spec))
        if row.state in (BoxState.CREATING, BoxState.DELETING):
            return Found(row, abandoned=True)
        liveness, power = await self.look(row)
        return Found(row, liveness=liveness, power=power)

    async def _latest(self, key: str, spec: BoxSpec) -> Snapshot | None:
        provider = self.provider(spec.provider)
        if Capability.SNAPSHOTS not in provider.capabilities:
            return None
        found = await provider.snapshots({KEY: key, TENANT: self.tenant})
        return max(found, key=lambda each: (each.created_at, each.id), default=None)

    async def _adopt_of(self, key: str, spec: BoxSpec) -> BoxRow | None:
        """A box of this key that its provider has, and whose row was lost or is in another store."""
        for info in await self.provider(spec.provider).find({KEY: key, TENANT: self.tenant}):
            if info.spec.lifetime is not Lifetime.ONE_SHOT and await self.rows.get(self.tenant, info.id) is None:
                return await self.adopt(info)
        return None

    async def adopt(self, info: BoxInfo) -> BoxRow:
        """Write a box into the store that only its provider knew."""
        now = self.clock()
        row = BoxRow(
            id=info.id,
            tenant=self.tenant,
            node=self.node,
            provider=info.provider,
            key=info.labels.get(KEY),
            spec=info.spec,
            labels=dict(info.labels),
            state=_state_of(info.power),
            created_at=info.created_at,
            changed_at=now,
            last_active_at=now,
            snapshot=info.snapshot,
        )
        await self.rows.insert(row)
        log.info("box %s was found at %s and written into the store", info.id, info.provider)
        return self.remember(row)

    async def _take_up(self, row: BoxRow, wanted: BoxSpec) -> BoxRow:
        """Give a box out again: it counts as active, and lives as long as its latest acquirer asks."""

        def taken_up(current: BoxRow) -> BoxRow:
            spec = with_lifetime_of(current.spec, wanted)
            now = self.clock()
            changed = current.changed_at if current.state is BoxState.RUNNING else now
            return replace(
                current, spec=spec, state=BoxState.RUNNING, changed_at=changed, last_active_at=now, holder=None
            )

        return self.remember(await self._swap(row, taken_up))

    # --- looking ---

    async def get(self, id: str) -> BoxRow:
        """A box, dead or alive. Raises `BoxNotFound`."""
        row = await self.rows.get(self.tenant, id)
        if row is None:
            raise BoxNotFound(f"there is no box {id}")
        return self.remember(row)

    async def open(self, id: str) -> Box:
        """A handle on a box, running or stopped; starts nothing. Close it when done."""
        row = await self._live(id)
        self.here(row)
        provider = self.provider(row.provider)
        try:
            box = await provider.attach(id)
        except (BoxNotFound, BoxGone):
            if await provider.probe(id) is not Liveness.GONE:
                raise
            await self.end(row, BoxState.GONE, f"{row.provider} has it no more")
            raise BoxGone(f"box {id} is gone: {row.provider} has it no more") from None
        self._note_use(id)
        return box

    async def _live(self, id: str) -> BoxRow:
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
        if row.lifetime is Lifetime.ONE_SHOT and row.live:
            self._one_shots.add(row.id)
        elif row.tombstone:
            for known in (self._one_shots, self._worked):
                known.discard(row.id)
            self._active.pop(row.id, None)
        return row

    # --- stop, start, delete ---

    async def stop(self, id: str) -> BoxRow:
        """End everything in it; files stay. One that is stopped stays so."""
        async with self.turns.alone(f"box/{id}"):
            row = await self._settled_row(id, Capability.STOP)
            if row.state is BoxState.STOPPED:
                return row
            return await self._switch(row, BoxState.STOPPING, BoxState.STOPPED, lambda box: box.stop())

    async def start_box(self, id: str) -> BoxRow:
        """Start a stopped box on its files. One that runs goes on."""
        async with self.turns.alone(f"box/{id}"):
            row = await self._settled_row(id, Capability.STOP)
            return row if row.state is BoxState.RUNNING else await self._power_up(row)

    async def _power_up(self, row: BoxRow) -> BoxRow:
        row = await self.settle(row)
        if row.state is BoxState.RUNNING:
            return row
        return await self._switch(row, BoxState.STARTING, BoxState.RUNNING, lambda box: box.start())

    async def _settled_row(self, id: str, capability: Capability) -> BoxRow:
        row = await self._live(id)
        self.here(row)
        require(row.provider, self.provider(row.provider).capabilities, capability)
        await self.join()
        if row.state in PASSING and not is_abandoned(row, await self.turns.holders(), self.turns.holder, self.busy):
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
            return await self.end(row, BoxState.GONE, f"{row.provider} has it no more")
        if liveness is Liveness.UNKNOWN or power is None or row.state is _state_of(power):
            return row
        return await self.move(row, _state_of(power))

    async def _switch(
        self, row: BoxRow, passing: BoxState, to: BoxState, work: Callable[[Box], Awaitable[None]]
    ) -> BoxRow:
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
            async with self.turns.alone(f"box/{id}"):
                return Deleted((await self.remove(row, "deleted")).freed or 0)
        limit = asyncio.timeout(TURN_SECONDS)
        try:
            async with limit, self.turns.turn(f"key/{row.key}"):
                limit.reschedule(None)  # the wait is bounded, the deletion is the provider's to bound
                return Deleted((await self.remove(row, "deleted")).freed or 0)
        except TimeoutError:
            if not limit.expired():
                raise
            raise BoxConflict(f"somebody else has been at key {row.key} for {TURN_SECONDS:g} s") from None

    async def remove(self, row: BoxRow, why: str) -> BoxRow:
        """Delete a box in whatever state it is, unless somebody who is alive is making it. Gives its tombstone."""
        provider = self.provider(row.provider)
        with self.at_work(row.id):
            for _ in range(_TRIES):
                if row.state is BoxState.DELETING:
                    freed = await provider.remove(row.id)
                    return await self.end(row, BoxState.DELETED, row.ended_why or why, freed)
                if row.state is BoxState.CREATING:
                    others = await self.turns.holders() - {self.turns.holder}
                    if row.holder in others or self.busy[row.id] > 1:
                        raise BoxConflict(f"box {row.id} is being made", hint="try again in a moment")
                try:
                    row = await self.move(row, BoxState.DELETING, ended_why=why)
                except BoxConflict:
                    row = await self.get(row.id)  # somebody moved it meanwhile
                    if row.tombstone:
                        return row
        raise BoxConflict(f"box {row.id} keeps changing under our hands", hint="try again in a moment")

    async def claim(self, row: BoxRow, why: str) -> BoxRow:
        """Begin to delete a box that nobody took up since its row was read. Raises `BoxConflict` where somebody did."""
        move(row.state, BoxState.DELETING)
        after = replace(row, state=BoxState.DELETING, changed_at=self.clock(), ended_why=why, holder=self.turns.holder)
        await self.rows.swap(row, after)
        return after

    # --- rows ---

    async def move(self, row: BoxRow, to: BoxState, **changes: Any) -> BoxRow:
        """Write the next state of a box. Raises `BoxConflict` where somebody else moved it."""
        move(row.state, to)

        def moved(current: BoxRow) -> BoxRow:
            holder = self.turns.holder if to in PASSING else None
            return replace(current, state=to, changed_at=self.clock(), holder=holder, **changes)

        return await self._swap(row, moved)

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

    async def _swap(self, row: BoxRow, change: Callable[[BoxRow], BoxRow]) -> BoxRow:
        """Change a row that is in the state we think it is. Activity noted meanwhile is no reason to give up."""
        for _ in range(_TRIES):
            after = change(row)
            try:
                await self.rows.swap(row, after)
                return after
            except BoxConflict:
                current = await self.rows.get(self.tenant, row.id)
                if current is None or current.state is not row.state or current.holder != row.holder:
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
        row = await self._live(id)
        given = dict(labels or {})
        _refuse_reserved(given)
        require(row.provider, self.provider(row.provider).capabilities, Capability.SNAPSHOTS)
        ours = {name: value for name, value in row.labels.items() if name.startswith(RESERVED)}
        check_labels({**given, **ours})
        with self.using(id):
            async with await self.open(id) as box:
                return await box.snapshot(labels={**given, **ours})

    async def snapshots(self, *, box: str | None = None, key: str | None = None) -> list[Snapshot]:
        """The oldest first, of every provider."""
        found: list[Snapshot] = []
        for provider in self._with_snapshots():
            found += await provider.snapshots({KEY: key} if key is not None else None)
        ours = [each for each in found if self._is_ours(each) and (box is None or each.box == box)]
        return sorted(ours, key=lambda each: (each.created_at, each.id))

    async def delete_snapshot(self, id: str) -> int:
        """Says how many bytes that freed. Raises `SnapshotNotFound`."""
        found = await self._snapshot(id)
        return await self.provider(found.provider).delete_snapshot(id)

    async def _snapshot(self, id: str) -> Snapshot:
        for provider in self._with_snapshots():
            try:
                found = await provider.snapshot(id)
            except SnapshotNotFound:
                continue
            if self._is_ours(found):
                return found
        raise SnapshotNotFound(f"there is no snapshot {id}")

    def _is_ours(self, snapshot: Snapshot) -> bool:
        return snapshot.labels.get(TENANT, "default") == self.tenant

    def _with_snapshots(self) -> Iterator[Provider]:
        return (each for each in self.providers.values() if Capability.SNAPSHOTS in each.capabilities)

    async def volumes(self, provider: str = "local") -> list[Volume]:
        return await self._with_volumes(provider).volumes()

    async def create_volume(self, name: str, provider: str = "local") -> Volume:
        check_name(name, "volume")
        return await self._with_volumes(provider).create_volume(name)

    async def delete_volume(self, name: str, provider: str = "local") -> int:
        return await self._with_volumes(provider).delete_volume(name)

    def _with_volumes(self, name: str) -> Provider:
        provider = self.provider(name)
        require(name, provider.capabilities, Capability.VOLUMES)
        return provider

    # --- use ---

    def working(self, id: str) -> AbstractContextManager[None]:
        """Somebody works in the box (a command, a channel, a port): it is not idle. The end of this ends a one-shot."""
        return self._used(id, self._worked_in)

    def using(self, id: str) -> AbstractContextManager[None]:
        """Somebody holds on to the box (an upload, a download): it is not idle, but that was not a one-shot's work."""
        return self._used(id, lambda id: None)

    @contextmanager
    def _used(self, id: str, after: Callable[[str], None]) -> Iterator[None]:
        self._working[id] += 1
        try:
            yield
        finally:
            self._working[id] -= 1
            if not self._working[id]:
                del self._working[id]
            after(id)
            self._note_use(id)

    def _note_use(self, id: str) -> None:
        # Activity on the row of a one-shot says that its work has ended: a look, or an upload, is no work.
        if id not in self._one_shots or id in self._worked:
            self._active[id] = self.clock()

    def _worked_in(self, id: str) -> None:
        if id in self._one_shots and id not in self._working:
            self._worked.add(id)
            task = asyncio.get_running_loop().create_task(self._sweep.end_one_shot(id), name=f"end of {id}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def is_working(self, id: str) -> bool:
        return id in self._working

    def has_worked(self, row: BoxRow) -> bool:
        """Whether work in a one-shot has ended: here, or where somebody noted activity after it was made."""
        return row.id in self._worked or row.last_active_at > row.created_at

    async def note_activity(self) -> None:
        """Write down what was used since the last time, so that other processes see it too."""
        for id in self._working:
            self._note_use(id)
        used, self._active = self._active, {}
        for id, when in used.items():
            await self.rows.touch(self.tenant, id, BoxState.RUNNING, when)

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


def _state_of(power: Power) -> BoxState:
    return BoxState.RUNNING if power is Power.RUNNING else BoxState.STOPPED


def _refuse_reserved(labels: Mapping[str, str]) -> None:
    if reserved := sorted(name for name in labels if name.startswith(RESERVED)):
        raise InvalidSpec(f"label {reserved[0]} is reserved", hint=f"choose a name that does not begin {RESERVED}")
