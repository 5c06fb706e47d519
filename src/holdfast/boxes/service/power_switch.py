"""Stops, starts, pauses and hibernates boxes on request."""

from __future__ import annotations

from holdfast.api.box.records import BoxState
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.lifecycle import ASLEEP
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idle.hibernation import Hibernation
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.service.states import BoxStates


class PowerSwitch:
    def __init__(self, registry: Registry, leases: Leases, states: BoxStates, hibernation: Hibernation) -> None:
        self._registry = registry
        self._leases = leases
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

    async def start(self, id: str) -> BoxRow:
        async with self._leases.alone(f"box/{id}"):
            row = await self._states.settled(id, Capability.STOP)
            if row.state in ASLEEP:
                return await self._hibernation.rouse(row)
            return row if row.state is BoxState.RUNNING else await self._states.start(row)

    async def pause(self, id: str) -> BoxRow:
        row = await self._states.settled(id, Capability.PAUSE)
        return row if row.state is BoxState.PAUSED else await self._hibernation.pause(row)

    async def hibernate(self, id: str) -> BoxRow:
        row = await self._states.settled(id, Capability.STOP)
        return row if row.state is BoxState.HIBERNATED else await self._hibernation.hibernate(row)
