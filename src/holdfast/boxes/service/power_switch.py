"""Stops, starts, pauses and hibernates boxes on request."""

from __future__ import annotations

from holdfast.api.box.records import BoxState
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.lifecycle import ASLEEP
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idle.hibernation import Hibernation
from holdfast.boxes.service.idle.idleness import Activity
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.service.states import BoxStates


class PowerSwitch:
    def __init__(
        self,
        registry: Registry,
        providers: Providers,
        leases: Leases,
        activity: Activity,
        states: BoxStates,
        hibernation: Hibernation,
    ) -> None:
        self._registry = registry
        self._providers = providers
        self._leases = leases
        self._activity = activity
        self._states = states
        self._hibernation = hibernation

    async def stop(self, id: str) -> BoxRow:
        async with self._leases.alone(f"box/{id}"):
            row = await self._states.settled(id, Capability.STOP)
            if row.state is BoxState.STOPPED:
                return row
            if row.state is BoxState.HIBERNATED:
                return await self._registry.move(row, BoxState.STOPPED)
            return await self._states.switch(row, BoxState.STOPPING, BoxState.STOPPED, lambda box: box.stop())

    async def stop_unused(self, row: BoxRow) -> BoxRow:
        """Stop a running box that was chosen by its row. Raises `BoxConflict` if it was used or changed since."""
        require(row.provider, self._providers.of(row).capabilities, Capability.STOP)
        async with self._leases.alone(f"box/{row.id}"):
            self._activity.check_unused(row)
            return await self._states.switch_unused(row, BoxState.STOPPING, BoxState.STOPPED, lambda box: box.stop())

    async def start(self, id: str) -> BoxRow:
        async with self._leases.alone(f"box/{id}"):
            row = await self._states.settled(id, Capability.STOP)
            if row.state in ASLEEP:
                return await self._hibernation.rouse(row)
            return row if row.state is BoxState.RUNNING else await self._states.start(row)

    async def pause(self, id: str) -> BoxRow:
        row = await self._states.settled(id, Capability.PAUSE)
        return row if row.state is BoxState.PAUSED else await self._hibernation.pause(row)

    async def pause_unused(self, row: BoxRow) -> BoxRow:
        """Pause a running box that was chosen by its row. Raises `BoxConflict` if it was used or changed since."""
        self._activity.check_unused(row)
        return await self._hibernation.pause(row)

    async def hibernate(self, id: str) -> BoxRow:
        row = await self._states.settled(id, Capability.STOP)
        return row if row.state is BoxState.HIBERNATED else await self._hibernation.hibernate(row)
