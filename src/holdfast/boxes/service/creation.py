"""Creates boxes: new ones, from a snapshot, or from another box. Ends with both a row and a box, or with neither."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.records import BoxState, Owner
from holdfast.api.box.spec import BoxSpec, Lifetime, check_name
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    BoxUnreachable,
    CreateFailed,
    InvalidSpec,
)
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.provider import Provider
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.pool import Pool
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.service.snapshot_store import SnapshotStore
from holdfast.boxes.service.states import BoxStates
from holdfast.boxes.shielded import nothing, settled, to_the_end
from holdfast.time_limit import time_limit

_POOL_TRIES: Final = 3
UNDO_SECONDS: Final = 30.0
"""How long the cleanup after a failure may take before it is left to the sweep."""

log = logging.getLogger(__name__)

CheckCount = Callable[[int], None]
"""Raises if there may not be another box beside so many."""


class Creation:
    """Creates the boxes of one service."""

    def __init__(
        self,
        registry: Registry,
        providers: Providers,
        states: BoxStates,
        pool: Pool,
        snapshots: SnapshotStore,
        check_count: CheckCount | None = None,
    ) -> None:
        self._check_count = check_count
        self._turn = asyncio.Lock()
        self._creating = 0
        self._registry = registry
        self._providers = providers
        self._states = states
        self._pool = pool
        self._snapshots = snapshots

    async def create(self, spec: BoxSpec, owner: Owner, id: str | None) -> BoxRow:
        provider = self._providers.for_spec(spec)
        if id is not None:
            check_name(id, "box")
        await self._registry.join()
        if id is None:
            return await self.fresh(spec, owner, None, provider)
        row = self._registry.new_row(spec, owner, id=id)

        def make() -> Awaitable[Box]:
            return provider.create(spec, id=row.id, labels=row.labels)

        return await self.make(row, provider, make, named=True)

    async def fresh(
        self, spec: BoxSpec, owner: Owner, key: str | None, provider: Provider, snapshot: str | None = None
    ) -> BoxRow:
        """Returns a new box, empty or with the files of a snapshot, from the pool or made now."""
        for _ in range(_POOL_TRIES):
            id = await self._pool.take(spec, snapshot)
            if id is None:
                break
            try:
                row = self._registry.new_row(spec, owner, id=id, key=key, snapshot=snapshot)
                handed_over = await self._hand_over(row, provider)
            except BaseException:
                self._pool.lost(id)
                raise
            if handed_over is not None:
                self._pool.handed_over(id)
                return handed_over
            self._pool.lost(id)
        row = self._registry.new_row(spec, owner, key=key, snapshot=snapshot)
        if snapshot is not None:
            return await self.restored(row, provider, snapshot)
        labels = row.labels
        return await self.make(row, provider, lambda: provider.create(spec, id=row.id, labels=labels))

    async def _hand_over(self, row: BoxRow, provider: Provider) -> BoxRow | None:
        """Hand over a box of the pool. Returns None if another caller got it or it is dead.

        The provider acts first, so that the row is never wrong. If this process dies in between, the box has no row,
        and a sweep removes it.
        """
        row = replace(row, state=BoxState.RUNNING, holder=None)
        async with self._counted():
            return await self._hand_over_counted(row, provider)

    async def _hand_over_counted(self, row: BoxRow, provider: Provider) -> BoxRow | None:
        with self._at_work(row, provider):
            handing = asyncio.ensure_future(
                provider.hand_over(row.id, row.spec, labels=row.labels, created_at=row.created_at)
            )
            try:
                box = await asyncio.shield(handing)
            except (BoxConflict, BoxGone, BoxNotFound):
                return None
            except (BoxStopped, BoxUnreachable):
                await to_the_end(self.undo(row, CreateFailed("it was dead")))
                return None
            except asyncio.CancelledError as error:
                await to_the_end(settled(handing))
                if not handing.cancelled() and handing.exception() is None:
                    await to_the_end(self.undo(row, error))
                raise
            writing = asyncio.ensure_future(self._registry.rows.insert(row))
            try:
                await box.close()
                await asyncio.shield(writing)
            except BaseException as error:
                await to_the_end(settled(writing))
                await to_the_end(self.undo(row, error))
                raise
            return self._registry.remember(row)

    async def restore(self, snapshot: str, spec: BoxSpec | None, owner: Owner) -> BoxRow:
        if spec is None:
            taken = await self._snapshots.find(snapshot)
            was = await self._registry.find(taken.box)
            if was is None:
                raise InvalidSpec(
                    f"the spec of box {taken.box}, from which snapshot {snapshot} was taken, is no longer known",
                    hint="give a spec for the new box",
                )
            spec = replace(was.spec, provider=taken.provider)
        provider = self._providers.for_spec(spec, Capability.SNAPSHOTS)
        await self._registry.join()
        row = self._registry.new_row(spec, owner, snapshot=snapshot)
        return await self.restored(row, provider, snapshot)

    async def fork(self, id: str, owner: Owner | None, key: str | None, idle_seconds: int | None = None) -> BoxRow:
        source = await self._registry.get_live(id)
        provider = self._providers.named(source.provider)
        provider.check_usable()
        require(source.provider, provider.capabilities, Capability.FORK)
        await self._registry.join()
        spec = source.spec
        if idle_seconds is not None:
            spec = replace(spec, lifetime=Lifetime.EPHEMERAL, idle_seconds=idle_seconds)
        row = self._registry.new_row(spec, owner or source.owner, key=key)

        async def make() -> Box:
            async with await self._states.peek(id) as box:
                return await box.fork(id=row.id, labels=row.labels)

        return await self.make(row, provider, make, named=key is not None)  # another box may have the key

    async def restored(self, row: BoxRow, provider: Provider, snapshot: str) -> BoxRow:
        return await self.make(
            row, provider, lambda: provider.restore(snapshot, row.spec, id=row.id, labels=row.labels)
        )

    @contextmanager
    def _at_work(self, row: BoxRow, provider: Provider) -> Iterator[None]:
        """Keep the pool, the sweep and changes of the provider away while a box is created."""
        with self._providers.creating(row.provider, provider), self._pool.live_create(), self._registry.at_work(row.id):
            yield

    async def make(
        self, row: BoxRow, provider: Provider, make: Callable[[], Awaitable[Box]], *, named: bool = False
    ) -> BoxRow:
        async with self._counted():
            return await self._make_counted(row, provider, make, named=named)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        """Create a box if there may be another one. Raises what the check raises, before anything is done.

        Boxes that are being created count, whether their rows are there yet or not: near the limit, one may be refused
        that would have been allowed a moment later.
        """
        if self._check_count is None:
            yield
            return
        async with self._turn:
            live = await self._registry.rows.count_live(self._registry.tenant)
            self._check_count(sum(live.values()) + self._creating)
            self._creating += 1
        try:
            yield
        finally:
            self._creating -= 1

    async def _make_counted(
        self, row: BoxRow, provider: Provider, make: Callable[[], Awaitable[Box]], *, named: bool
    ) -> BoxRow:
        with self._at_work(row, provider):
            if named:
                # Another box may have this name. Nothing is started or undone before the row is written.
                await self._registry.rows.insert(row)
            try:
                box = await self.made(row, make, inserted=named)
            except BoxConflict:
                if not named:
                    raise
                # The provider has a box of that name that the store does not know. It is not ours to remove.
                await to_the_end(self._registry.rows.forget(self._registry.tenant, row.id))
                raise
            try:
                info = box.info
                await box.close()
                return self._registry.remember(
                    await self._registry.move(row, BoxState.RUNNING, snapshot=info.snapshot or row.snapshot)
                )
            except BaseException as error:
                await to_the_end(self.undo(row, error))
                raise

    async def made(self, row: BoxRow, make: Callable[[], Awaitable[Box]], *, inserted: bool = False) -> Box:
        """Returns a complete box whose row is still `creating`. Ends with both or neither.

        Writes the row while the box is created, to hide the fsync.
        """
        writing = asyncio.ensure_future(nothing() if inserted else self._registry.rows.insert(row))
        making = asyncio.ensure_future(make())
        try:
            # The row is always written: as a tombstone, it records the failure.
            _, box = await asyncio.gather(asyncio.shield(writing), making)
        except BaseException as error:
            making.cancel()
            await to_the_end(settled(making, writing))
            if inserted and isinstance(error, BoxConflict):
                raise
            await to_the_end(self.undo(row, error))
            if isinstance(error, BoxError) or not isinstance(error, Exception):
                raise
            raise CreateFailed(f"the box could not be created: {str(error) or type(error).__name__}") from error
        return box

    async def undo(self, row: BoxRow, error: BaseException) -> None:
        """Removes what exists of a box that could not be created. The sweep removes what cannot be removed now."""
        why = "cancelled" if isinstance(error, asyncio.CancelledError) else f"could not be created: {error}"
        current = await self._registry.find(row.id)
        live = current is not None and current.live
        if current is not None and live and current.state is not BoxState.DELETING:
            current = await self._registry.move(current, BoxState.DELETING, ended_why=why)
        try:
            async with time_limit(UNDO_SECONDS):
                freed = await self._providers.named(row.provider).remove(row.id)
        except Exception as problem:
            log.warning("cannot remove box %s after a failed create, the next sweep will retry: %s", row.id, problem)
            return
        if current is not None and live:
            await self._registry.end(current, BoxState.DELETED, why, freed)
