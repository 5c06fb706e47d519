"""The contract of a store of models. Keys arrive encrypted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model as it is stored. None means the value from the catalog."""

    name: str
    endpoints: str | None = None
    """A JSON object of URLs by API. None for a built-in provider, whose endpoints come with each release."""
    model: str | None = None
    context_window: int | None = None
    max_tokens: int | None = None
    key: bytes | None = field(default=None, repr=False)
    """Encrypted for `purpose`."""

    @property
    def purpose(self) -> str:
        """What the key is encrypted for. If the row is changed to another server, the key cannot be decrypted."""
        return f"{self.name} {self.endpoints or 'built in'}"


class ModelStore(Protocol):
    """The models that were added to a server. Changes are on disk when `put` and `remove` return."""

    async def load_all(self) -> list[ModelRow]: ...

    async def put(self, row: ModelRow, now: int) -> None:
        """Write a row, replacing that of the same name. `now` is UTC milliseconds."""

    async def remove(self, name: str) -> bool:
        """Remove a row. Returns whether there was one."""
