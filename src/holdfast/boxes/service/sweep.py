"""Carries out what `reaper` decides. A failure at one box does not affect the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from holdfast.api.box.box import BoxInfo, Liveness, Metrics, Power
from holdfast.api.box.records import BoxState
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import Lifetime, OnIdle
from holdfast.api.errors.boxes import BoxConflict, BoxGone, BoxNotFound, BoxStopped
from holdfast.boxes.labels import HIBERNATION, POOL, SERVICES, TENANT
from holdfast.boxes.lifecycle import PASSING, SETTLED
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idle.hibernation import Hibernation
from holdfast.boxes.service.idle.idleness import (
    Activity,
    Sample,
    WatchInterval,
    comparable,
    doing,
    is_watched,
    last_work,
)
from holdfast.boxes.service.idle.sleep_snapshots import SleepSnapshots
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.pool import Pool
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.reaper import IdleAction, Use, drifted, is_stuck, judge_unknown, to_prune, to_reap
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.service.removal import Removal
from holdfast.boxes.service.snapshot_store import SnapshotStore
from holdfast.boxes.service.states import BoxStates
from holdfast.time_limit import time_limit

AT_ONCE: Final = 8
ONE_BOX_SECONDS: Final = 60.0
"""How long one box, or one call to a provider, may take before the sweep continues without it."""
TOMBSTONE_MS: Final = 30 * 24 * 3600 * 1000
"""How long tombstones are kept."""
_POWER: Final = {
    BoxState.RUNNING: Power.RUNNING,
    BoxState.PAUSED: Power.PAUSED,
    BoxState.HIBERNATED: Power.STOPPED,
    BoxState.STOPPED: Power.STOPPED,
}

log = logging.getLogger(__name__)

Judge = Callable[[BoxRow, Use, int], IdleAction | None]


@dataclass(frozen=True, slots=True)
class Removed:
    """A box that a sweep removed."""

    id: str
    why: str
    freed: int


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a sweep did."""

    removed: tuple[Removed, ...] = ()
    gone: tuple[str, ...] = ()
    """Boxes that their providers no longer have."""
    adopted: tuple[str, ...] = ()
    """Boxes that only their providers knew."""
    asleep: tuple[str, ...] = ()
    """Idle boxes that were paused or hibernated."""
    leftovers: tuple[str, ...] = ()
    """Leftovers of interrupted operations that providers removed, one line each."""
    failed: tuple[str, ...] = ()
    """Failures, one line each. The next sweep tries again."""
    freed: int = 0
    """Total bytes freed."""


@dataclass(slots=True)
class _Report:
    removed: list[Removed] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    adopted: list[str] = field(default_factory=list)
    asleep: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    freed: int = 0

    def done(self) -> Pruned:
        freed = self.freed + sum(each.freed for each in self.removed)
        return Pruned(
            tuple(self.removed),
            tuple(self.gone),
            tuple(self.adopted),
            tuple(self.asleep),
            tuple(self.leftovers),
            tuple(self.failed),
            freed,
        )


class Sweep:
    """Sweeps the boxes of one service, one sweep at a time. Owns the periodic task from `start` to `close`."""

    def __init__(
        self,
        registry: Registry,
        providers: Providers,
        leases: Leases,
        activity: Activity,
        interval: WatchInterval,
        states: BoxStates,
        hibernation: Hibernation,
        removal: Removal,
        pool: Pool,
        snapshots: SnapshotStore,
        sleep_snapshots: SleepSnapshots,
        *,
        seconds: float,
    ) -> None:
        """`seconds` is the time between two sweeps."""
        self._registry = registry
        self._providers = providers
        self._leases = leases
        self._activity = activity
        self._interval = interval
        self._states = states
        self._hibernation = hibernation
        self._removal = removal
        self._pool = pool
        self._snapshots = snapshots
        self._sleep_snapshots = sleep_snapshots
        self._seconds = seconds
        self._failures = _FailureLog()
        self._samples: dict[str, Sample] = {}
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Clean up after processes that died, now and periodically."""
        await self.run()
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._keep_sweeping(), name="box sweep")

    async def close(self) -> None:
        """Closing twice has no effect."""
        sweeper, self._sweeper = self._sweeper, None
        if sweeper is not None:
            sweeper.cancel()
            await asyncio.gather(sweeper, return_exceptions=True)

    async def _keep_sweeping(self) -> None:
        while True:
            await self._interval.wait(self._seconds, self._watch)
            try:
                await self.run()
            except Exception as error:  # the store is full or locked: the next sweep may succeed
                self._failures.add("sweep", error)

    async def run(self) -> Pruned:
        return await self._run(to_reap)

    async def prune(self) -> Pruned:
        await self._pool.drain()
        return await self._run(to_prune)

    async def _watch(self) -> None:
        """Pause, hibernate or delete idle boxes. The sweep does everything else."""
        try:
            async with self._leases.alone("sweep"):
                report = _Report()
                await self._activity.write()
                rows = await self._registry.all_live()
                await self._for_each(
                    [row for row in rows if row.state in SETTLED and is_watched(row)], report, self._mind
                )
                self._interval.reset(rows)
        except Exception as error:  # the store is full or locked: the next pass may succeed
            self._failures.add("idle boxes", error)

    async def _mind(self, row: BoxRow, report: _Report) -> None:
        await self._reap(row, _POWER[row.state], to_reap, report)

    async def _for_each(
        self, rows: list[BoxRow], report: _Report, work: Callable[[BoxRow, _Report], Awaitable[None]]
    ) -> None:
        at_once = asyncio.Semaphore(AT_ONCE)

        async def one(row: BoxRow) -> None:
            async with at_once, self._trying(row.id, report):
                await work(row, report)

        await asyncio.gather(*(one(row) for row in rows if row.provider in self._providers))

    async def end_one_shot(self, id: str) -> None:
        """Delete a one-shot box whose work has ended, unless a process still runs in it."""
        try:
            async with time_limit(ONE_BOX_SECONDS):
                row = await self._registry.get(id)
                if row.state is BoxState.RUNNING and row.lifetime is Lifetime.ONE_SHOT:
                    await self._activity.write()
                    row = await self._registry.get(id)
                    await self._reap(row, Power.RUNNING, to_reap, _Report())
        except Exception as error:
            self._failures.add(id, error)

    async def _run(self, judge: Judge) -> Pruned:
        since = await self._registry.join()
        async with self._leases.alone("sweep"):
            report = _Report()
            await self._activity.write()
            found = await self._found(report)
            rows = await self._registry.all_live()
            holders = await self._leases.holders()

            async def tend(row: BoxRow, report: _Report) -> None:
                await self._tend(row, holders, found.get(row.provider), judge, report)

            await self._for_each(rows, report, tend)
            known = {row.id: row for row in rows}
            self._samples = {id: sample for id, sample in self._samples.items() if id in known}
            self._interval.reset(rows)
            everywhere = len(found) == len(self._providers)
            present = {id for infos in found.values() for id in infos} if everywhere else None
            for name, infos in found.items():
                async with self._trying(f"pool at {name}", report):
                    ahead = [info for info in infos.values() if POOL in info.labels]
                    removed = await self._pool.tend(self._providers.named(name), ahead, known)
                    report.leftovers.extend(f"box {id} of a pool" for id in removed)
                async with self._trying(f"unknown boxes at {name}", report):
                    unknown = [info for info in infos.values() if info.id not in known and POOL not in info.labels]
                    await self._settle_unknown(self._providers.named(name), unknown, since, present, report)
            async with self._trying("tombstones", report):
                await self._forget(report)
            return report.done()

    def _trying(self, about: str, report: _Report) -> _Trying:
        return _Trying(self._failures, about, report)

    async def _found(self, report: _Report) -> dict[str, dict[str, BoxInfo]]:
        """Returns all boxes of our tenant, by provider. Leaves out providers that do not answer."""
        found: dict[str, dict[str, BoxInfo]] = {}

        async def ask(name: str, provider: Provider) -> None:
            async with self._trying(f"provider {name}", report):
                swept = await provider.sweep()
                report.leftovers.extend(swept.removed)
                report.freed += swept.freed
                found[name] = {info.id: info for info in await provider.find({TENANT: self._registry.tenant})}

        await asyncio.gather(*(ask(name, provider) for name, provider in self._providers.items()))
        return found

    async def _tend(
        self, row: BoxRow, holders: set[str], found: dict[str, BoxInfo] | None, judge: Judge, report: _Report
    ) -> None:
        registry = self._registry
        if row.state in PASSING:
            if not is_stuck(row, holders, self._leases.holder, registry.busy, registry.clock()):
                return
            if row.state in (BoxState.CREATING, BoxState.DELETING):
                self._note(await self._removal.remove_judged(row, f"the process that was {row.state} it died"), report)
            elif (await self._states.settle(row)).tombstone:
                report.gone.append(row.id)
            return
        if found is None:
            return
        if row.id not in found:
            if await self._providers.named(row.provider).probe(row.id) is Liveness.GONE:
                row = await self._states.lose(row)
                if row.state is BoxState.GONE:
                    report.gone.append(row.id)
                elif is_watched(row):
                    await self._reap(row, Power.STOPPED, judge, report)  # it sleeps, and only its snapshot is left
            return
        power = found[row.id].power
        if drifted(row, power) is not None:
            # The provider was asked before the row was read. The box may have been started or stopped in between.
            liveness, now = await self._states.look(row)
            if liveness is not Liveness.LIVE or now is None:
                return
            power = now
            if (real := drifted(row, power)) is not None:
                row = await registry.move(row, real)
        if is_watched(row):
            await self._reap(row, power, judge, report)

    async def _reap(self, row: BoxRow, power: Power, judge: Judge, report: _Report) -> None:
        """Do what `judge` decides, unless the box was used since its row was read."""
        row, use = await self._use(row, power)
        action = judge(row, use, self._registry.clock())
        try:
            match action:
                case IdleAction(OnIdle.DELETE, why):
                    self._note(await self._removal.remove_judged(row, why), report)
                case IdleAction(OnIdle.HIBERNATE, why):
                    await self._hibernation.hibernate(row)
                    report.asleep.append(row.id)
                    log.info("box %s was hibernated: %s", row.id, why)
                case IdleAction(OnIdle.PAUSE, why):
                    await self._hibernation.pause(row)
                    report.asleep.append(row.id)
                    log.info("box %s was paused: %s", row.id, why)
        except BoxConflict:
            log.debug("box %s is in use again", row.id)

    async def _use(self, row: BoxRow, power: Power) -> tuple[BoxRow, Use]:
        """Returns how a box is used, and its row, updated with the time of its last work."""
        registry, activity = self._registry, self._activity
        metrics = await self._metrics(row) if power is Power.RUNNING else None
        if metrics is not None and SERVICES in row.labels:
            metrics = replace(metrics, listening=0)
        now = Sample(registry.clock(), metrics, activity.is_working(row.id))
        before = self._samples.get(row.id)
        what = doing(before, now)
        if comparable(before, now):
            self._samples[row.id] = now
        when = last_work(row, now, what)
        # Activity on the row of a one-shot box means that its work has ended. Only its caller knows that.
        if when > row.last_active_at and row.lifetime is not Lifetime.ONE_SHOT:
            await registry.rows.touch(registry.tenant, row.id, BoxState.RUNNING, when)
            current = await registry.find(row.id)
            # If another process changed the row, keep the one that was read: later writes then raise `BoxConflict`.
            if current is not None and current.state is row.state and current.last_active_at == when:
                row = current
        return row, Use(power, what, activity.is_working(row.id), activity.has_worked(row), metrics, when)

    async def _metrics(self, row: BoxRow) -> Metrics | None:
        try:
            async with await self._providers.named(row.provider).attach(row.id) as box:
                return await box.activity()
        except (BoxStopped, BoxGone, BoxNotFound):
            return None  # the box changed meanwhile: the next sweep sees its new state

    async def _settle_unknown(
        self, provider: Provider, unknown: list[BoxInfo], since: int, present: set[str] | None, report: _Report
    ) -> None:
        if not unknown:
            return
        registry = self._registry
        live = await registry.all_live()
        rows = [await registry.find(info.id) for info in unknown]
        known = {row.id: row for row in rows if row is not None}
        judged = judge_unknown(
            unknown,
            known,
            {row.key for row in live if row.key is not None and row.lifetime is not Lifetime.ONE_SHOT},
            node=registry.node,
            since=since,
            now=registry.clock(),
            present=present,
        )
        for info, why in judged.orphans:
            async with self._trying(info.id, report):
                if await provider.probe(info.id) is Liveness.GONE or info.id in registry.busy:
                    continue  # deleted meanwhile, or being handed over
                if info.id not in known:
                    self._note(await self._removal.remove_stranger(info, why), report)
                    continue
                report.removed.append(Removed(info.id, why, await provider.remove(info.id)))  # it has a tombstone
                log.info("box %s was removed: %s", info.id, why)
        for info, key in judged.adopted:
            async with self._trying(info.id, report):
                await registry.adopt(info, key)
                report.adopted.append(info.id)

    async def _forget(self, report: _Report) -> None:
        """Remove old tombstones, except those of boxes that have snapshots: restoring one needs the spec."""
        registry = self._registry
        taken = await self._snapshots.all()
        left = await self._left_asleep(taken)
        report.freed += await self._sleep_snapshots.remove(left)
        needed = {snapshot.box for snapshot in taken if snapshot not in left}
        await registry.rows.prune(registry.tenant, registry.clock() - TOMBSTONE_MS, needed)

    async def _left_asleep(self, taken: list[Snapshot]) -> list[Snapshot]:
        """Returns the hibernation snapshots of deleted boxes, which an interrupted deletion left."""
        left = []
        for snapshot in taken:
            if (id := snapshot.labels.get(HIBERNATION)) is not None:
                row = await self._registry.find(id)
                # For a box that its provider lost, the snapshot may be the only copy.
                if row is not None and row.state is BoxState.DELETED:
                    left.append(snapshot)
        return left

    def _note(self, row: BoxRow, report: _Report) -> None:
        report.removed.append(Removed(row.id, row.ended_why or "", row.freed or 0))
        log.info("box %s was removed: %s", row.id, row.ended_why)


class _FailureLog:
    """Logs each failure once, until it changes or is over."""

    def __init__(self) -> None:
        self._logged: dict[str, str] = {}

    def add(self, about: str, error: BaseException) -> str:
        text = f"{about}: {str(error) or type(error).__name__}"
        if self._logged.get(about) != text:
            self._logged[about] = text
            log.warning("sweep of boxes: %s", text)
        return text

    def clear(self, about: str) -> None:
        self._logged.pop(about, None)


class _Trying:
    """Lets one step fail or time out without stopping the sweep."""

    def __init__(self, failures: _FailureLog, about: str, report: _Report) -> None:
        self._failures = failures
        self._about = about
        self._report = report
        self._limit = time_limit(ONE_BOX_SECONDS)

    async def __aenter__(self) -> None:
        await self._limit.__aenter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        problem: BaseException | None = error
        try:
            await self._limit.__aexit__(type(error) if error else None, error, error.__traceback__ if error else None)
        except TimeoutError:
            problem = TimeoutError(f"timed out after {ONE_BOX_SECONDS:g} s")
        if problem is None or isinstance(problem, BoxConflict):  # another process is changing it: not a failure
            self._failures.clear(self._about)
            return problem is not None
        if not isinstance(problem, Exception):
            return False
        self._report.failed.append(self._failures.add(self._about, problem))
        return True
