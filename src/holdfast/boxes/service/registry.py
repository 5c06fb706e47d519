"""Reads and changes the rows of boxes on behalf of one node and one process.

Every change of state is written before it starts and again when it is done. If the process dies in between, the next
sweep of any process on the store can finish the change.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from holdfast.api.box.box import BoxInfo
from holdfast.api.box.records import BoxState, Owner
from holdfast.api.box.spec import BoxSpec, check_labels
from holdfast.api.errors.boxes import BoxConflict, BoxGone, BoxNotFound, BoxUnreachable
from holdfast.api.ids import new_id
from holdfast.boxes.labels import KEY, NODE, SPEC, owner_labels
from holdfast.boxes.lifecycle import PASSING, move, state_of
from holdfast.boxes.rows import BoxRow, BoxRows
from holdfast.boxes.service.idle.idleness import Activity, WatchInterval
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.reaper import is_abandoned

_TRIES: Final = 20

log = logging.getLogger(__name__)


class Registry:
    """Does not own the rows and leases that it is given."""

    def __init__(
        self,
        rows: BoxRows,
        leases: Leases,
        activity: Activity,
        interval: WatchInterval,
        *,
        tenant: str,
        node: str,
        clock: Callable[[], int],
    ) -> None:
        self.rows = rows
        self.tenant = tenant
        self.node = node
        self.clock = clock
        self.busy: Counter[str] = Counter()
        """Boxes whose state this process is changing right now."""
        self._leases = leases
        self._activity = activity
        self._interval = interval
        self._since: int | None = None

    async def join(self) -> int:
        """Show other processes that this one is alive. Returns when this store first knew of this node."""
        await self._leases.join()
        if self._since is None:
            self._since = await self.rows.join(self.tenant, self.node, self.clock())
        return self._since

    @property
    def joined(self) -> bool:
        """Whether `join` was called."""
        return self._since is not None

    # --- reading ---

    async def find(self, id: str) -> BoxRow | None:
        return await self.rows.get(self.tenant, id)

    async def get(self, id: str) -> BoxRow:
        """Returns a box, dead or alive. Raises `BoxNotFound`."""
        row = await self.find(id)
        if row is None:
            raise BoxNotFound(f"there is no box {id}")
        self._activity.remember(row)
        return row

    async def named(self, name: str) -> BoxRow:
        """The box with this id, or else the live one with this key. Raises `BoxNotFound`."""
        row = await self.rows.get(self.tenant, name) or await self.rows.of_key(self.tenant, name)
        if row is None:
            raise BoxNotFound(f"there is no box {name}")
        return row

    async def get_live(self, id: str) -> BoxRow:
        """Returns a usable box. Raises `BoxNotFound`, `BoxGone`, or `BoxConflict` while it is being created."""
        row = await self.get(id)
        if row.tombstone:
            raise BoxGone(f"box {id} is {row.state}" + (f": {row.ended_why}" if row.ended_why else ""))
        if row.state is BoxState.DELETING:
            raise BoxGone(f"box {id} is being deleted")
        if row.state is BoxState.CREATING:
            raise BoxConflict(f"box {id} is being created", hint="try again in a moment")
        if row.state is BoxState.MOVING and await self.is_being_changed(row):
            raise BoxConflict(f"box {id} is being moved", hint="wait until it has moved, and use the new box")
        return row

    async def of_key(self, key: str) -> BoxRow | None:
        """Returns the live box of a key. Ignores one-shot boxes."""
        return await self.rows.of_key(self.tenant, key)

    async def all_live(self) -> list[BoxRow]:
        """Returns all live boxes of this node, oldest first."""
        return await self.rows.live(self.tenant, self.node)

    def check_here(self, row: BoxRow) -> None:
        """Raises `BoxUnreachable` if the box is on another node, where our providers cannot see it."""
        if row.node != self.node:
            raise BoxUnreachable(
                f"box {row.id} is on node {row.node}, but this is node {self.node}",
                hint="send the request to that node",
            )

    def remember(self, row: BoxRow) -> BoxRow:
        """Track a row that this process wrote, and sample boxes as often as its idle time requires.

        The next sweep tracks rows that other processes wrote.
        """
        self._activity.remember(row)
        self._interval.heed(row)
        return row

    # --- new rows ---

    def new_row(
        self, spec: BoxSpec, owner: Owner, *, id: str | None = None, key: str | None = None, snapshot: str | None = None
    ) -> BoxRow:
        """Returns the row of a box that is about to be created."""
        ours = {**owner_labels(replace(owner, tenant=self.tenant)), SPEC: spec.hash, NODE: self.node}
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
            holder=self._leases.holder,
        )

    def row_of(self, info: BoxInfo, state: BoxState, *, key: str | None = None, ended_why: str | None = None) -> BoxRow:
        """Returns a row for a box that only its provider knew."""
        now = self.clock()
        return BoxRow(
            id=info.id,
            tenant=self.tenant,
            node=self.node,
            provider=info.provider,
            key=key,
            spec=info.spec,
            labels=dict(info.labels),
            state=state,
            created_at=info.created_at,
            changed_at=now,
            last_active_at=now,
            ended_why=ended_why,
            snapshot=info.snapshot,
            holder=self._holder_in(state),
        )

    async def adopt(self, info: BoxInfo, key: str | None) -> BoxRow:
        """Write a box that only its provider knew into the store."""
        row = self.row_of(info, state_of(info.power), key=key)
        await self.rows.insert(row)
        log.info("box %s was found at %s and written into the store", info.id, info.provider)
        return self.remember(row)

    # --- changing ---

    async def move(self, row: BoxRow, to: BoxState, **changes: Any) -> BoxRow:
        """Write the next state of a box. Raises `BoxConflict` if another process moved it."""
        return await self.swap(row, lambda current: self._moved(current, to, **changes))

    async def move_unused(self, row: BoxRow, to: BoxState, **changes: Any) -> BoxRow:
        """Like `move`, but also raises `BoxConflict` if the box was used since its row was read."""
        after = self._moved(row, to, **changes)
        await self.rows.swap(row, after)
        return after

    async def take_over(self, row: BoxRow, **changes: Any) -> BoxRow:
        """Continue what a dead process began. Raises `BoxConflict` if the row has changed since it was read."""
        after = replace(row, changed_at=self.clock(), holder=self._leases.holder, **changes)
        await self.rows.swap(row, after)
        return after

    def _moved(self, row: BoxRow, to: BoxState, **changes: Any) -> BoxRow:
        move(row.state, to)
        return replace(row, state=to, changed_at=self.clock(), holder=self._holder_in(to), **changes)

    def _holder_in(self, state: BoxState) -> str | None:
        return self._leases.holder if state in PASSING else None

    async def end(self, row: BoxRow, to: BoxState, why: str, freed: int | None = None) -> BoxRow:
        """Make the row a tombstone. Does nothing if it is one already."""
        try:
            ended = await self.move(row, to, ended_at=self.clock(), ended_why=why, freed=freed)
        except BoxConflict:
            current = await self.get(row.id)
            if not current.tombstone:
                raise
            return current
        return self.remember(ended)

    async def swap(self, row: BoxRow, change: Callable[[BoxRow], BoxRow]) -> BoxRow:
        """Change a row if its state is unchanged. Retries if only its activity has changed."""
        for _ in range(_TRIES):
            after = change(row)
            try:
                await self.rows.swap(row, after)
                return after
            except BoxConflict:
                current = await self.find(row.id)
                if current is None or _state_of(row) != _state_of(current):
                    raise
                row = current
        raise keeps_changing(f"box {row.id}")

    # --- which process is changing a box ---

    @contextmanager
    def at_work(self, id: str) -> Iterator[None]:
        """Mark the box as being changed by this process. Afterwards, the sweep corrects a state that is left over."""
        self.busy[id] += 1
        try:
            yield
        finally:
            self.busy[id] -= 1
            if not self.busy[id]:
                del self.busy[id]

    async def is_being_changed(self, row: BoxRow) -> bool:
        """Returns whether the row is in a transitional state and a live process is changing it."""
        if row.state not in PASSING:
            return False
        return not is_abandoned(row, await self._leases.holders(), self._leases.holder, self.busy)

    async def is_made_by_another(self, row: BoxRow) -> bool:
        """Returns whether another live process, or another task of this one, is creating the box."""
        others = await self._leases.holders() - {self._leases.holder}
        return row.holder in others or self.busy[row.id] > 1


def keeps_changing(what: str) -> BoxConflict:
    return BoxConflict(f"{what} keeps changing", hint="try again in a moment")


def _state_of(row: BoxRow) -> tuple[BoxState, int, str | None]:
    """Returns what changes with every change of state, even if the box returns to the same state."""
    return row.state, row.changed_at, row.holder
