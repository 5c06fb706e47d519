"""The contract of a store of environments: their versions, and the files that a user has allowed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EnvironmentRow:
    """One version of an environment. It never changes."""

    name: str
    version: int
    digest: str
    text: str
    created_at: int
    """UTC milliseconds."""
    created_by: str


class EnvironmentStore(Protocol):
    """Changes are on disk when a method returns. Versions of a name count up from 1, also after a removal."""

    async def add(
        self, name: str, digest: str, text: str, *, by: str, now: int, after: int | None = None
    ) -> EnvironmentRow | None:
        """Store the next version. Returns None, and stores nothing, if `after` is given and is not the latest version
        (0: there is none)."""
        ...

    async def get(self, name: str, version: int | None = None) -> EnvironmentRow | None:
        """Returns a version, by default the latest, or None."""
        ...

    async def versions(self, name: str) -> list[EnvironmentRow]:
        """Returns all versions, newest first."""
        ...

    async def latest(self) -> list[EnvironmentRow]:
        """Returns the latest version of each environment, by name."""
        ...

    async def remove(self, name: str) -> bool:
        """Remove all versions. Returns whether there were any."""
        ...

    async def allow(self, place: str, digest: str, *, by: str, now: int) -> None:
        """Remember that a user has allowed the file with this digest at a place, instead of any other one there."""

    async def is_allowed(self, place: str, digest: str) -> bool: ...

    async def disallow(self, place: str) -> bool:
        """Forget what was allowed at a place. Returns whether anything was."""
        ...
