"""The contract of the store of what the Daytona API keeps beside boxes: names, labels, intervals and so on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """One object of the Daytona API. Times are UTC milliseconds."""

    kind: str
    """`sandbox`, `snapshot`, `volume`, `secret` or `build`."""
    id: str
    name: str
    """Unique among the records of its kind and tenant."""
    document: Document
    created_at: int
    changed_at: int


class RecordStore(Protocol):
    """Each method is one transaction."""

    async def insert(self, tenant: str, record: Record) -> bool:
        """Returns False if the id or the name is taken. Nothing is written then."""

    async def find(self, tenant: str, kind: str, id_or_name: str) -> Record | None:
        """Returns the record with this id, or else the one with this name."""

    async def count(self, tenant: str, kind: str) -> int: ...

    async def list(self, tenant: str, kind: str) -> list[Record]:
        """Returns all records of a kind, newest first."""

    async def change(
        self, tenant: str, kind: str, id: str, change: Callable[[Document], Document], now: int
    ) -> Record | None:
        """Replace the document of a record. `change` runs on another thread. Returns None if there is no record."""

    async def remove(self, tenant: str, kind: str, id: str) -> bool: ...
