"""The contract of the store of boxes and leases.

Each box has a row, which stays as a tombstone after the box has ended. Processes coordinate through leases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.api.box.records import TOMBSTONES, BoxState, Owner
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.boxes.labels import owner_of
from holdfast.boxes.lifecycle import LIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRow:
    """One box. All times are UTC milliseconds."""

    id: str
    tenant: str
    node: str
    """The machine (or home) that has the box."""
    provider: str
    key: str | None
    """The key that the box was acquired for."""
    spec: BoxSpec = field(repr=False)
    labels: Mapping[str, str]
    """All labels: the spec's, the owner's and Holdfast's own."""
    state: BoxState
    created_at: int
    changed_at: int
    """When the state last changed."""
    last_active_at: int
    """When the box was last acquired or last did work."""
    ended_at: int | None = None
    ended_why: str | None = None
    freed: int | None = None
    """Bytes that deleting the box freed."""
    snapshot: str | None = None
    """The snapshot that the box was restored from."""
    holder: str | None = None
    """The process that is changing the box, in a transitional state. If it dies, a sweep finishes its work."""

    @property
    def owner(self) -> Owner:
        return owner_of(self.labels)

    @property
    def lifetime(self) -> Lifetime:
        return self.spec.lifetime

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def tombstone(self) -> bool:
        return self.state in TOMBSTONES


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxFilter:
    """Which boxes to list. A box has to match every field."""

    states: Collection[BoxState] = ()
    """Match any of these states. If empty, match every state that `live_only` allows."""
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    live_only: bool = True
    """Leave out tombstones, except those whose state is listed in `states`."""
    limit: int = 100
    after: str | None = None
    """`next_cursor` of the previous page."""


@dataclass(frozen=True, slots=True)
class BoxPage:
    """A page of boxes, newest first."""

    rows: tuple[BoxRow, ...]
    next_cursor: str | None


class BoxRows(Protocol):
    """A store of rows and leases. Each method is one transaction. Several processes can use the same store."""

    async def insert(self, row: BoxRow) -> None:
        """Raises `BoxConflict` if the id is taken or the key has a live box that is not one-shot."""

    async def get(self, tenant: str, id: str) -> BoxRow | None: ...

    async def of_key(self, tenant: str, key: str) -> BoxRow | None:
        """Returns the live box of a key. Ignores one-shot boxes."""

    async def live(self, tenant: str, node: str) -> list[BoxRow]:
        """Returns all live boxes of a node, oldest first."""

    async def count_live(self, tenant: str) -> dict[str, int]:
        """Returns how many live boxes each provider has, on all nodes. Leaves out those that have none."""

    async def list(self, tenant: str, wanted: BoxFilter) -> BoxPage: ...

    async def swap(self, before: BoxRow, after: BoxRow) -> None:
        """Replace `before` with `after` if its state, `changed_at`, holder and last activity are unchanged.

        Raises `BoxConflict` otherwise, even if the row has left the state and returned to it.
        """

    async def swap_all(self, changes: Sequence[tuple[BoxRow, BoxRow]]) -> None:
        """Like `swap` for several rows, in this order: all of them are replaced, or none."""

    async def touch(self, tenant: str, id: str, state: BoxState, now: int) -> bool:
        """Record activity if the box is still in that state. A power cut may lose the record."""

    async def forget(self, tenant: str, id: str) -> None:
        """Remove a row without leaving a tombstone."""

    async def prune(self, tenant: str, before: int, keep: Collection[str]) -> int:
        """Remove old leases, and tombstones of boxes that ended before `before`, except those in `keep`.

        Returns the number of tombstones removed.
        """

    async def join(self, tenant: str, node: str, now: int) -> int:
        """Returns when this store first knew of the node. Records `now` on the first call."""

    # --- leases ---

    async def take(self, tenant: str, name: str, holder: str, now: int, ttl: int, *, frees_space: bool = False) -> bool:
        """Take a lease that is free, has expired, or already belongs to the holder. Times are in milliseconds.

        Set `frees_space` for a deletion, which has to work on a full disk.
        """

    async def renew(self, tenant: str, names: Collection[str], holder: str, now: int, ttl: int) -> int:
        """Renew the leases that the holder still has. Returns how many."""

    async def release(self, tenant: str, name: str, holder: str) -> None: ...

    async def release_all(self) -> None:
        """Release every lease of every holder. The caller must have the storage to itself."""

    async def held(self, tenant: str, prefix: str, now: int) -> set[str]:
        """Returns the names of all unexpired leases that start with `prefix`."""

    async def close(self) -> None: ...
