"""Keeps the rows of boxes in agreement with what their providers report."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from holdfast.api.box.box import Box, Liveness, Power, Wake
from holdfast.api.box.records import BoxState
from holdfast.api.errors.boxes import BoxConflict, BoxGone, BoxNotFound, BoxUnreachable
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.lifecycle import DORMANT, PASSING, state_of
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idle.sleep_snapshots import SleepSnapshots
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.shielded import settled, to_the_end


class BoxStates:
    """What state boxes are in, and how they get from one to another."""

    def __init__(self, registry: Registry, providers: Providers, sleep_snapshots: SleepSnapshots) -> None:
        self._registry = registry
        self._providers = providers
        self._sleep_snapshots = sleep_snapshots

    # --- what a provider reports ---

    async def look(self, row: BoxRow) -> tuple[Liveness, Power | None]:
        """Returns whether the box exists and runs, as its provider reports it."""
        if row.provider not in self._providers:
            return Liveness.UNKNOWN, None  # its account may come back
        provider = self._providers.of(row)
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

    async def peek(self, id: str) -> Box:
        """Returns a handle that does not wake the box. The caller closes it."""
        return await self.attach(await self._registry.get_live(id))

    async def attach(self, row: BoxRow, wake: Wake | None = None) -> Box:
        """Returns a handle, which the caller closes. Raises `BoxGone` if the provider no longer has the box."""
        self._registry.check_here(row)
        provider = self._providers.of(row)
        try:
            return await provider.attach(row.id, wake=wake)
        except (BoxNotFound, BoxGone):
            if await provider.probe(row.id) is not Liveness.GONE:
                raise
            await self.lose(row)
            raise gone(row) from None

    # --- correcting rows ---

    async def lose(self, row: BoxRow) -> BoxRow:
        """Record that the provider no longer has the box, unless it sleeps and can be restored from its snapshot."""
        if row.state in DORMANT and await self._sleep_snapshots.of(row) is not None:
            if row.state is BoxState.HIBERNATED:
                return row
            return await self._registry.move(row, BoxState.HIBERNATED)
        return await self._registry.end(row, BoxState.GONE, f"{row.provider} no longer has it")

    async def settle(self, row: BoxRow) -> BoxRow:
        """Set the row to the actual state of the box. Leaves the row unchanged if that state is unknown."""
        liveness, power = await self.look(row)
        if liveness is Liveness.GONE:
            return await self.lose(row)
        if liveness is Liveness.UNKNOWN or power is None or row.state is state_of(power, row.state):
            return row
        return await self._registry.move(row, state_of(power, row.state))

    async def settle_for_use(self, row: BoxRow) -> BoxRow:
        """Settle a row that no process is changing. Raises `BoxGone`, or `BoxUnreachable` if the state is unknown."""
        row = await self.settle(row)
        if row.tombstone:
            raise gone(row)
        if row.state in PASSING:
            raise BoxUnreachable(f"box {row.id} does not answer", hint="try again in a moment")
        return row

    async def settled(self, id: str, capability: Capability) -> BoxRow:
        """Returns the row of a box, with its actual state.

        Raises `Unsupported` if its provider lacks the capability, and `BoxConflict` if a process is changing the box.
        """
        row = await self._registry.get_live(id)
        self._registry.check_here(row)
        require(row.provider, self._providers.of(row).capabilities, capability)
        await self._registry.join()
        if await self._registry.is_being_changed(row):
            raise BoxConflict(f"box {id} is {row.state}", hint="another caller is changing it: try again in a moment")
        return await self.settle_for_use(row)

    # --- from one state to another ---

    async def switch(
        self, row: BoxRow, passing: BoxState, to: BoxState, work: Callable[[Box], Awaitable[None]]
    ) -> BoxRow:
        """Move a box from one settled state to another."""
        with self._registry.at_work(row.id):
            return await self._pass(await self._registry.move(row, passing), to, work)

    async def switch_unused(
        self, row: BoxRow, passing: BoxState, to: BoxState, work: Callable[[Box], Awaitable[None]]
    ) -> BoxRow:
        """Like `switch`, but raises `BoxConflict` if the box was used since its row was read."""
        with self._registry.at_work(row.id):
            return await self._pass(await self._registry.move_unused(row, passing), to, work)

    async def _pass(self, row: BoxRow, to: BoxState, work: Callable[[Box], Awaitable[None]]) -> BoxRow:
        async with self.settling(row):
            async with await self._providers.of(row).attach(row.id) as box:
                await work(box)
            return await self._registry.move(row, to, last_active_at=self._registry.clock())

    async def start(self, row: BoxRow) -> BoxRow:
        """Start a stopped box. Does nothing if it runs."""
        row = await self.settle(row)
        if row.state is BoxState.RUNNING:
            return row
        return await self.switch(row, BoxState.STARTING, BoxState.RUNNING, lambda box: box.start())

    @asynccontextmanager
    async def settling(self, row: BoxRow) -> AsyncIterator[None]:
        """If the body fails, set the row to the actual state of the box. If that fails too, the sweep corrects it."""
        try:
            yield
        except BaseException:
            await to_the_end(settled(asyncio.ensure_future(self.settle(row))))
            raise


def gone(row: BoxRow) -> BoxGone:
    return BoxGone(f"box {row.id} is gone: {row.provider} no longer has it")
