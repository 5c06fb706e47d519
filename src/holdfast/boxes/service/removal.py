"""Deletes boxes, at the request of a caller or by a decision of the sweep."""

from __future__ import annotations

from typing import Final

from holdfast.api.box.box import BoxInfo, Deleted
from holdfast.api.box.records import BoxState
from holdfast.api.box.spec import Lifetime, OnIdle
from holdfast.api.errors.boxes import BoxConflict
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.idle.sleep_snapshots import SleepSnapshots
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry, keeps_changing

_TRIES: Final = 20


class Removal:
    """Deletes the boxes of one service."""

    def __init__(
        self, registry: Registry, providers: Providers, leases: Leases, sleep_snapshots: SleepSnapshots
    ) -> None:
        self._registry = registry
        self._providers = providers
        self._leases = leases
        self._sleep_snapshots = sleep_snapshots

    async def delete(self, id: str) -> Deleted:
        row = await self._registry.get(id)
        if row.tombstone:
            return Deleted(row.freed or 0)
        self._registry.check_here(row)
        await self._registry.join()
        if row.key is None or row.lifetime is Lifetime.ONE_SHOT:
            async with self._leases.alone(f"box/{id}"):
                return Deleted((await self.remove(row, "deleted")).freed or 0)
        async with self._leases.turn_soon(f"key/{row.key}", frees_space=True):
            return Deleted((await self.remove(row, "deleted")).freed or 0)

    async def delete_unused(self, row: BoxRow, why: str) -> None:
        """Delete a box that was chosen by its row. Raises `BoxConflict` if it was used or changed since."""
        self._registry.check_here(row)
        await self._registry.join()
        async with self._leases.alone(f"box/{row.id}"):
            await self.remove_judged(row, why)

    async def remove(self, row: BoxRow, why: str) -> BoxRow:
        """Delete a box in any state, unless a live process is creating it. Returns its tombstone. Raises
        `BoxUnreachable` if this server does not have its provider.

        Use `remove_judged` for a box that was chosen by its row.
        """
        provider = self._providers.of(row)  # first, so that a box whose provider is missing stays as it is
        with self._registry.at_work(row.id):
            for _ in range(_TRIES):
                if row.state is BoxState.DELETING:
                    freed = await provider.remove(row.id)
                    if row.spec.when_idle is OnIdle.HIBERNATE:
                        freed += await self._sleep_snapshots.remove_of(row)
                    return await self._registry.end(row, BoxState.DELETED, row.ended_why or why, freed)
                if row.state is BoxState.CREATING and await self._registry.is_made_by_another(row):
                    raise BoxConflict(f"box {row.id} is being created", hint="try again in a moment")
                try:
                    row = await self._registry.move(row, BoxState.DELETING, ended_why=why)
                except BoxConflict:
                    row = await self._registry.get(row.id)  # another process moved it meanwhile
                    if row.tombstone:
                        return row
        raise keeps_changing(f"box {row.id}")

    async def remove_judged(self, row: BoxRow, why: str) -> BoxRow:
        """Delete a box that was chosen by its row. Raises `BoxConflict` if the row has changed since it was read."""
        self._providers.of(row)  # as in `remove`
        with self._registry.at_work(row.id):
            ended_why = row.ended_why or why
            if row.state is BoxState.DELETING:  # a process died while deleting it
                row = await self._registry.take_over(row, ended_why=ended_why)
            else:
                row = await self._registry.move_unused(row, BoxState.DELETING, ended_why=ended_why)
            return await self.remove(row, why)

    async def remove_stranger(self, info: BoxInfo, why: str) -> BoxRow:
        """Delete a box that only its provider knows. Raises `BoxConflict` if it got a row meanwhile.

        Writes a row in state `deleting` first, so that no other caller adopts the box. The row has no key, because the
        key has another box.
        """
        with self._registry.at_work(info.id):
            row = self._registry.row_of(info, BoxState.DELETING, ended_why=why)
            await self._registry.rows.insert(row)
            return await self.remove(row, why)
