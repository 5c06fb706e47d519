"""The contract of a store of models. Their keys are sealed before they come here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model as it is stored. What is None, the catalog decides."""

    name: str
    endpoints: str | None = None
    """A JSON object of URLs by API; None for a built-in provider, whose endpoints come with each release."""
    model: str | None = None
    context_window: int | None = None
    max_tokens: int | None = None
    key: bytes | None = field(default=None, repr=False)
    """Sealed for `purpose`."""

    @property
    def purpose(self) -> str:
        """What the key is sealed for. In a row that points at another server, it cannot be opened."""
        return f"{self.name} {self.endpoints or 'built in'}"


class ModelStore(Protocol):
    """The models that were added to a server. What `put` and `remove` have returned from is on disk."""

    async def load_all(self) -> list[ModelRow]: ...

    async def put(self, row: ModelRow, now: int) -> None:
        """Write a row, in place of the one of that name. `now` is UTC milliseconds."""

    async def remove(self, name: str) -> bool:
        """Remove a row. Returns whether there was one."""
