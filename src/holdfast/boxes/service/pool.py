"""The warm pool: boxes that are created ahead of time, per spec and first snapshot, and handed over as new.

Demand decides how many, within bounds: every create of a spec raises its score, which decays over time. A box leaves
the pool only when its provider hands it over, and only one caller can succeed. So no box is given out twice, even if
several processes know it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from holdfast.api.box.box import Box, BoxInfo
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    BoxUnreachable,
    ImageNotFound,
)
from holdfast.api.ids import new_id
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import NODE, POOL, POOL_FURNISHED, POOL_HOLDER, POOL_OF, POOL_SNAPSHOT, SPEC, TENANT
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.pool_rules import (
    END,
    Demand,
    PoolDemand,
    PoolSettings,
    allot,
    can_be_pooled,
    furnishing_of,
    made_ahead,
    pool_key,
)
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.shielded import to_the_end
from holdfast.time_limit import time_limit

MOST_SPECS: Final = 256
"""The most specs whose demand is tracked. Beyond that, the one with the least demand is dropped."""
TICK_SECONDS: Final = 5.0
"""How often the pool checks for boxes that are out of date or no longer wanted."""
LONGEST_WAIT: Final = 2.0
"""The most seconds that requested creates can delay the creation of one pooled box."""
LONGEST_PAUSE: Final = 60.0
"""The most seconds between two attempts when boxes cannot be created."""
CLOSE_SECONDS: Final = 5.0
"""Time to empty the pool when the service closes. A later sweep removes what is left."""
REMOVALS_AT_ONCE: Final = 8
FURNISH_SECONDS: Final = 30.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    size: int
    """Boxes that are ready."""
    wanted: int
    specs: int
    """Specs that have boxes ready or being created."""
    hits: int
    misses: int
    made: int
    drained: int
    """Boxes removed without being handed over."""


@dataclass(slots=True)
class _PooledSpec:
    """The boxes of one spec."""

    spec: BoxSpec
    of: str
    """The version of what they are created with."""
    furnishing: str | None = None
    snapshot: str | None = None
    """What they are restored from."""
    ready: deque[str] = field(default_factory=deque)
    demand: Demand = field(default_factory=Demand)
    kept: int = 0


class Pool:
    """The pool of one service. Owns the task that fills and drains it from its first use to `close`."""

    def __init__(self, registry: Registry, providers: Providers, leases: Leases, settings: PoolSettings) -> None:
        self._settings = settings
        self._registry = registry
        self._providers = providers
        self._leases = leases
        self._pooled: dict[str, _PooledSpec] = {}
        self._in_hand: set[str] = set()
        """Boxes of the pool that this process is creating, handing over or removing now."""
        self._live = 0
        self._last_live = -math.inf
        self._wake = asyncio.Event()
        self._calm = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._pause = 0.0
        self._closed = False
        self._hits = self._misses = self._made = self._drained = 0

    @property
    def on(self) -> bool:
        return self._settings.boxes > 0 and not self._closed

    def statistics(self) -> PoolStatistics:
        wanted = self._allotted()
        return PoolStatistics(
            size=sum(len(pooled.ready) for pooled in self._pooled.values()),
            wanted=sum(wanted.values()),
            specs=sum(1 for key, pooled in self._pooled.items() if pooled.ready or wanted[key]),
            hits=self._hits,
            misses=self._misses,
            made=self._made,
            drained=self._drained,
        )

    # --- taking ---

    @contextmanager
    def live_create(self) -> Iterator[None]:
        """Create no pooled box while a caller waits for a create."""
        self._live += 1
        try:
            yield
        finally:
            self._live -= 1
            self._last_live = asyncio.get_running_loop().time()

    async def take(self, spec: BoxSpec, snapshot: str | None = None) -> str | None:
        """Reserve a box for the caller to hand over, new or restored from a snapshot. Returns None if there is none.

        The caller reports the result with `handed_over` or `lost`.
        """
        provider = self._providers.named(spec.provider)
        if not self.on or not can_be_pooled(spec, provider.capabilities):
            return None
        pooled = await self._pooled_of(spec, provider, self._furnishing_of(spec, provider), snapshot)
        if pooled is None:
            return None
        pooled.demand = pooled.demand.taken(self._registry.clock(), self._settings.half_life)
        self._start()
        self._wake.set()
        if not pooled.ready:
            self._misses += 1
            return None
        id = pooled.ready.popleft()
        self._in_hand.add(id)
        return id

    def handed_over(self, id: str) -> None:
        self._hits += 1
        self._in_hand.discard(id)

    def lost(self, id: str) -> None:
        """Another process got the box, or it is dead."""
        self._in_hand.discard(id)

    def _furnishing_of(self, spec: BoxSpec, provider: Provider) -> str | None:
        return furnishing_of(spec, provider.capabilities, self._settings.furnishings)

    async def _pooled_of(
        self, spec: BoxSpec, provider: Provider, furnishing: str | None = None, snapshot: str | None = None
    ) -> _PooledSpec | None:
        try:
            of = await _made_with(spec, provider, snapshot)
        except BoxError:
            return None  # for example, there is no such image: the create that follows raises the error
        key = f"{pool_key(spec, provider.capabilities)} {furnishing or ''} {snapshot or ''}"
        pooled = self._pooled.get(key)
        if pooled is None:
            self._forget_least_wanted()
            ahead = made_ahead(spec, provider.capabilities)
            pooled = self._pooled[key] = _PooledSpec(ahead, of, furnishing, snapshot)
        elif pooled.of != of:
            await self._refresh(pooled)
        return pooled

    def _forget_least_wanted(self) -> None:
        while len(self._pooled) >= MOST_SPECS:
            empty = [key for key, pooled in self._pooled.items() if not pooled.ready and not pooled.kept]
            if not empty:
                return
            del self._pooled[min(empty, key=lambda key: self._score(self._pooled[key]))]

    async def keep(self, spec: BoxSpec, count: int, snapshot: str | None = None) -> None:
        """Keep at least `count` boxes of a spec ready, within the bounds, whatever the demand."""
        provider = self._providers.for_spec(spec)
        if self.on and can_be_pooled(spec, provider.capabilities):
            pooled = await self._pooled_of(spec, provider, self._furnishing_of(spec, provider), snapshot)
            if pooled is not None:
                pooled.kept = count
                self._start()
                self._wake.set()

    # --- filling and draining ---

    def _start(self) -> None:
        if self._worker is None and self.on:
            self._worker = asyncio.create_task(self._work(), name="box pool")

    async def _work(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with time_limit(TICK_SECONDS):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._until_calm()  # a caller that just got a box runs its first command
                await self._registry.join()
                await self._drain_unwanted()
                while (pooled := self._most_needy()) is not None:
                    await self._until_calm()
                    await self._make_one(pooled)
                self._calm.set()
            except Exception as error:  # a provider or the store fails: callers get boxes without the pool
                self._pause = min(LONGEST_PAUSE, max(1.0, self._pause * 2))
                log.warning("cannot fill the pool of boxes, trying again in %.0f s: %s", self._pause, error)
                await asyncio.sleep(self._pause)

    async def settled(self) -> None:
        """Wait until the pool has exactly the wanted boxes. For tests and benchmarks; put a timeout around it."""
        for _ in range(2):  # the current round may have started before the demand changed
            self._start()
            self._calm.clear()
            self._wake.set()
            await self._calm.wait()

    def _score(self, pooled: _PooledSpec) -> float:
        return pooled.demand.now(self._registry.clock(), self._settings.half_life)

    def _allotted(self) -> dict[str, int]:
        demands = {
            key: PoolDemand(self._score(pooled), pooled.kept, bool(pooled.ready))
            for key, pooled in self._pooled.items()
        }
        return allot(demands, self._settings)

    def _most_needy(self) -> _PooledSpec | None:
        """Returns the spec with the smallest share of its wanted boxes, if there is room for one more."""
        if self._closed or self._settings.memory() < self._settings.least_memory:
            return None
        wanted = self._allotted()
        needy = [(len(self._pooled[key].ready) / count, key) for key, count in wanted.items() if count]
        share, key = min(needy, default=(1.0, ""))
        return self._pooled[key] if share < 1.0 else None

    async def _until_calm(self) -> None:
        loop = asyncio.get_running_loop()
        latest = loop.time() + LONGEST_WAIT
        while (now := loop.time()) < latest:
            since = 0.0 if self._live else now - self._last_live
            if since >= self._settings.quiet_seconds:
                return
            await asyncio.sleep(self._settings.quiet_seconds - since)

    async def _make_one(self, pooled: _PooledSpec) -> None:
        provider = self._providers.named(pooled.spec.provider)
        id = new_id("b")
        began = asyncio.get_running_loop().time()
        self._in_hand.add(id)
        try:
            with self._providers.creating(pooled.spec.provider, provider):
                box = await self._make(provider, pooled, id)
                try:
                    await self._furnish(box, pooled)
                finally:
                    await box.close()
            if await self._is_current(pooled):
                pooled.ready.append(id)
                self._made += 1
            else:  # the image was replaced in the meantime
                await to_the_end(self._remove(provider, id, pooled.spec))
        except BoxError:
            pooled.demand = Demand()  # the spec may be the cause, and others want boxes too
            raise
        finally:
            self._in_hand.discard(id)
        self._pause = 0.0
        # Sleep for as long as the creation took, so that the pool uses at most half of the time.
        await asyncio.sleep(asyncio.get_running_loop().time() - began)

    async def _make(self, provider: Provider, pooled: _PooledSpec, id: str) -> Box:
        if pooled.snapshot is None:
            return await provider.create(pooled.spec, id=id, labels=self._labels(pooled))
        return await provider.restore(pooled.snapshot, pooled.spec, id=id, labels=self._labels(pooled))

    async def _furnish(self, box: Box, pooled: _PooledSpec) -> None:
        if pooled.furnishing is None:
            return
        try:
            async with time_limit(FURNISH_SECONDS):
                await self._settings.furnishings[pooled.furnishing](box)
        except Exception as error:  # foreign code may raise anything; the owner of the box starts it later
            log.warning("cannot prepare box %s of the pool: %s", box.id, error)

    def _labels(self, pooled: _PooledSpec) -> dict[str, str]:
        hash = pooled.spec.hash
        furnished = {} if pooled.furnishing is None else {POOL_FURNISHED: pooled.furnishing}
        restored = {} if pooled.snapshot is None else {POOL_SNAPSHOT: pooled.snapshot}
        return {
            **furnished,
            **restored,
            POOL: hash,
            POOL_OF: pooled.of,
            POOL_HOLDER: self._leases.holder,
            SPEC: hash,
            TENANT: self._registry.tenant,
            NODE: self._registry.node,
        }

    async def _drain_unwanted(self) -> None:
        hungry = self._settings.memory() < self._settings.least_memory / 2
        wanted = self._allotted()
        for key, pooled in list(self._pooled.items()):
            await self._refresh(pooled)
            while pooled.ready and (hungry or len(pooled.ready) > wanted[key]):
                await self._drain([pooled.ready.popleft()], pooled)
            if not pooled.ready and not wanted[key] and self._score(pooled) < END:
                self._pooled.pop(key, None)

    async def _refresh(self, pooled: _PooledSpec) -> None:
        """Remove boxes that are out of date, or whose spec cannot be created any more."""
        try:
            of = await _made_with(pooled.spec, self._providers.named(pooled.spec.provider), pooled.snapshot)
        except BoxError:
            pooled.demand, pooled.kept = Demand(), 0
            await self._empty(pooled)
            return
        if pooled.of != of:
            pooled.of = of
            await self._empty(pooled)

    async def _is_current(self, pooled: _PooledSpec) -> bool:
        try:
            provider = self._providers.named(pooled.spec.provider)
            return pooled.of == await _made_with(pooled.spec, provider, pooled.snapshot)
        except BoxError:
            return False

    async def _empty(self, pooled: _PooledSpec) -> None:
        ids = list(pooled.ready)
        pooled.ready.clear()
        await self._drain(ids, pooled)

    async def _drain(self, ids: Sequence[str], pooled: _PooledSpec) -> None:
        provider = self._providers.named(pooled.spec.provider)
        turns = asyncio.Semaphore(REMOVALS_AT_ONCE)

        async def drain(id: str) -> None:
            self._in_hand.add(id)
            try:
                async with turns:
                    await self._remove(provider, id, pooled.spec)
            except BoxError as error:
                log.warning("cannot remove box %s of the pool, the next sweep will retry: %s", id, error)
            finally:
                self._in_hand.discard(id)

        await asyncio.gather(*(drain(id) for id in ids))

    async def _remove(self, provider: Provider, id: str, spec: BoxSpec) -> bool:
        """Take a box out of the pool and remove it. Returns False if another process already has it."""
        labels = {TENANT: self._registry.tenant, NODE: self._registry.node}
        try:
            box = await provider.hand_over(id, spec, labels=labels, created_at=self._registry.clock())
            await box.close()
        except (BoxConflict, BoxGone, BoxNotFound):
            return False
        except (BoxStopped, BoxUnreachable):
            pass  # handed over to us, but dead
        await provider.remove(id)
        self._drained += 1
        return True

    async def drain(self) -> None:
        """Remove all boxes that are ready."""
        for pooled in list(self._pooled.values()):
            await self._empty(pooled)

    async def drain_volume(self, provider: str, volume: str) -> None:
        """Remove pooled boxes that mount a volume, so that they do not keep it in use."""
        for pooled in list(self._pooled.values()):
            if pooled.spec.provider == provider and any(each.volume == volume for each in pooled.spec.volumes):
                await self._empty(pooled)

    async def drain_provider(self, name: str) -> None:
        """Remove all pooled boxes of a provider that is about to go, also those that no process holds."""
        self._pooled = {key: pooled for key, pooled in self._pooled.items() if pooled.spec.provider != name}
        provider, registry = self._providers.named(name), self._registry
        if Capability.POOL not in provider.capabilities:
            return
        try:
            for info in await provider.find({TENANT: registry.tenant, NODE: registry.node}):
                if POOL in info.labels:
                    await to_the_end(self._remove(provider, info.id, info.spec))
        except BoxError as error:  # its credential may be the reason why it goes
            log.warning("boxes of the pool may be left at %s: %s", name, error)

    async def close(self) -> None:
        """Stop filling the pool, and remove its boxes. Closing twice has no effect."""
        self._closed = True
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.cancel()
            await asyncio.gather(worker, return_exceptions=True)
        with suppress(TimeoutError):
            async with time_limit(CLOSE_SECONDS):
                await self.drain()
                await self._drain_the_dead()

    async def _drain_the_dead(self) -> None:
        """Remove boxes that killed processes left and no sweep has taken over: no other process would stop them."""
        registry = self._registry
        if not registry.joined:
            return
        for name, provider in list(self._providers.items()):
            try:
                found = await provider.find({TENANT: registry.tenant, NODE: registry.node})
                if ahead := [info for info in found if POOL in info.labels]:
                    rows = {row.id: row for row in await registry.all_live()}
                    await self.tend(provider, ahead, rows)
            except Exception as error:  # the provider or the store fails: the next server's sweep removes them
                log.warning("cannot remove the rest of the pool at %s now: %s", name, error)

    # --- what a sweep finds ---

    async def tend(self, provider: Provider, found: Sequence[BoxInfo], rows: Mapping[str, BoxRow]) -> list[str]:
        """Take over or remove boxes of the pool whose process died. Returns the ids of those removed."""
        holders = await self._leases.holders() - {self._leases.holder}
        known = self._in_hand.union(*(pooled.ready for pooled in self._pooled.values()))
        removed = []
        for info in found:
            if (
                info.labels.get(NODE) != self._registry.node
                or info.labels.get(POOL_HOLDER) in holders
                or info.id in known
            ):
                continue
            if (row := rows.get(info.id)) is not None:
                await self._finish(provider, row)
            elif not await self._take_up(provider, info) and await to_the_end(
                self._remove(provider, info.id, info.spec)
            ):
                removed.append(info.id)
        return removed

    async def _finish(self, provider: Provider, row: BoxRow) -> None:
        """Hand over a box again: a power cut lost the provider's record of it, but the row is there."""
        with suppress(BoxConflict, BoxStopped, BoxUnreachable):
            await provider.hand_over(row.id, row.spec, labels=row.labels, created_at=row.created_at)

    async def _take_up(self, provider: Provider, info: BoxInfo) -> bool:
        furnishing = info.labels.get(POOL_FURNISHED)
        if not self.on or not can_be_pooled(info.spec, provider.capabilities):
            return False
        if furnishing is not None and furnishing not in self._settings.furnishings:
            return False
        pooled = await self._pooled_of(info.spec, provider, furnishing, info.labels.get(POOL_SNAPSHOT))
        size = sum(len(each.ready) for each in self._pooled.values())
        most = self._settings.boxes if self._settings.per_spec is None else self._settings.per_spec
        if pooled is None or info.labels.get(POOL_OF) != pooled.of or size >= self._settings.boxes:
            return False
        if len(pooled.ready) >= most or info.labels.get(POOL) != pooled.spec.hash:
            return False
        self._in_hand.add(info.id)
        try:
            box = await provider.hand_over(
                info.id, pooled.spec, labels=self._labels(pooled), created_at=info.created_at
            )
            await box.close()
        except BoxError:
            return False
        finally:
            self._in_hand.discard(info.id)
        pooled.ready.append(info.id)
        # The demand is lost with the dead process. The box stays as long as if it were requested once now.
        if self._score(pooled) < len(pooled.ready):
            pooled.demand = Demand(float(len(pooled.ready)), self._registry.clock())
        self._start()
        return True


async def _made_with(spec: BoxSpec, provider: Provider, snapshot: str | None) -> str:
    """Returns the version of what a box of this spec would be created with now. Raises `ImageNotFound` or
    `SnapshotNotFound`."""
    if snapshot is not None:
        return f"{provider.edition} {(await provider.snapshot(snapshot)).id}"
    if spec.image is None or provider.images is None:
        return provider.edition
    try:
        return f"{provider.edition} {(await provider.images.get(spec.image)).digest}"
    except ImageNotFound:
        if provider.images.takes_archives:
            raise
        return provider.edition
