"""The contract of a store of memories. `holdfast.testing.store_suites` tests implementations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class MemoryRow:
    id: str
    category: str
    content: str
    session: str
    """The session that wrote it."""
    root: str
    """The topmost session of its tree."""
    created_at: int

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "category": self.category,
            "content": self.content,
            "sessionId": self.session,
            "createdAt": self.created_at,
        }


class MemoryStore(Protocol):
    """The memories of one tenant. A change is on disk when its call returns."""

    async def add(self, row: MemoryRow, most: int) -> bool:
        """Add a memory. Returns False, and adds nothing, if there are `most` already. One with the same id stays as it
        is.
        """
        ...

    async def get(self, id: str) -> MemoryRow | None: ...

    async def find(self, query: str | None, category: str | None, limit: int) -> list[MemoryRow]:
        """Returns memories with all words of the query, the best matches first; without one, the latest first. Words
        match in any case, without accents, and by their beginning. A query without words finds nothing.
        """
        ...

    async def remove(self, id: str, root: str | None = None) -> bool:
        """Remove a memory, if it belongs to this tree. Returns whether it was there. None: of any tree."""
        ...
