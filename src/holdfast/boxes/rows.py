"""What the store knows of boxes: a row for each, kept as a tombstone after its end.

And leases, by which processes take turns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.api.box_spec import BoxSpec, Lifetime
from holdfast.api.boxes import BoxState
from holdfast.boxes.labels import Owner, owner_of
from holdfast.boxes.lifecycle import LIVE, TOMBSTONES


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxRow:
    """One box. All times are UTC milliseconds."""

    id: str
    tenant: str
    node: str
    """The machine (or home) that has the box."""
    provider: str
    key: str | None
    """What it was acquired for."""
    spec: BoxSpec = field(repr=False)
    labels: Mapping[str, str]
    """All of them: the spec's, the owner's and our own."""
    state: BoxState
    created_at: int
    changed_at: int
    """When the state last changed."""
    last_active_at: int
    """When it was last given out, or last worked for somebody."""
    ended_at: int | None = None
    ended_why: str | None = None
    freed: int | None = None
    """Bytes that its end set free."""
    snapshot: str | None = None
    """The snapshot that its files began as."""
    holder: str | None = None
    """Who is at work on it, in a state that passes: a dead holder's work is finished by a sweep."""

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
    """Which boxes to list: all that is given has to fit."""

    states: Collection[BoxState] = ()
    """Any of these; none given means every state (that `live_only` leaves)."""
    labels: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    live_only: bool = True
    """Leave out tombstones. Naming a tombstone's state in `states` brings those back."""
    limit: int = 100
    after: str | None = None
    """`next_cursor` of the page before."""


@dataclass(frozen=True, slots=True)
class BoxPage:
    """Boxes, the newest first."""

    rows: tuple[BoxRow, ...]
    next_cursor: str | None


class BoxRows(Protocol):
    """A store of rows and leases. Every method is one transaction, safe with other processes on the same store."""

    async def insert(self, row: BoxRow) -> None:
        """Raises `BoxConflict` where the id is taken, or the key has a live box already (one-shot ones apart)."""

    async def get(self, tenant: str, id: str) -> BoxRow | None: ...

    async def of_key(self, tenant: str, key: str) -> BoxRow | None:
        """The live box of a key. One-shot boxes are nobody's: they do not count."""

    async def live(self, tenant: str, node: str) -> list[BoxRow]:
        """All live boxes of a node, the oldest first."""

    async def list(self, tenant: str, wanted: BoxFilter) -> BoxPage: ...

    async def swap(self, before: BoxRow, after: BoxRow) -> None:
        """Write `after` where the row is still `before`: its state and since when, its holder and its last activity.

        Raises `BoxConflict` where any of them changed. A row that came back to the same state is another one.
        """

    async def touch(self, tenant: str, id: str, state: BoxState, now: int) -> bool:
        """Note activity, where the box is still in that state. May be forgotten in a power cut."""

    async def forget(self, tenant: str, id: str) -> None:
        """Remove a row without a trace."""

    async def prune(self, tenant: str, before: int, keep: Collection[str]) -> int:
        """Remove tombstones of boxes that ended before then, but for these, and old leases; says how many boxes."""

    async def join(self, tenant: str, node: str, now: int) -> int:
        """Since when this store knows of the boxes of a node: now, where it is the first time."""

    # --- leases ---

    async def take(self, tenant: str, name: str, holder: str, now: int, ttl: int, *, frees_space: bool = False) -> bool:
        """Take a lease that is free, has expired, or is the holder's own. Times in milliseconds.

        `frees_space`: it is wanted for a deletion, which a full disk must not refuse.
        """

    async def renew(self, tenant: str, names: Collection[str], holder: str, now: int, ttl: int) -> int:
        """Renew those of these leases that the holder still has; says how many."""

    async def release(self, tenant: str, name: str, holder: str) -> None: ...

    async def release_all(self) -> None:
        """Release every lease, whoever holds it. Only for a caller that has the storage to itself."""

    async def held(self, tenant: str, prefix: str, now: int) -> set[str]:
        """The names that begin with `prefix` of all leases that have not expired."""

    async def close(self) -> None: ...
