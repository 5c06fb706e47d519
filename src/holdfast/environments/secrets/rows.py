"""Secrets and their audit as they are stored, and the contract of the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from holdfast.api.secrets import Binding, Exposure, SecretEvent, SecretRecord

MOST_EVENTS: Final = 1000
"""The newest events kept for each name."""


@dataclass(frozen=True, slots=True)
class SecretRow:
    """One secret as it is stored."""

    name: str
    bindings: str
    """A JSON list of `Binding`."""
    expose: str | None
    placeholder: str
    version: int
    created_at: int
    changed_at: int
    changed_by: str
    value: bytes = field(repr=False)
    """Sealed for `purpose`."""

    @property
    def purpose(self) -> str:
        """What the value is sealed for. In a row that was changed to name another host, it cannot be opened."""
        return f"{self.name} {self.version} {self.expose} {self.bindings}"

    @property
    def record(self) -> SecretRecord:
        return SecretRecord(
            name=self.name,
            bindings=tuple(map(Binding.from_json, json.loads(self.bindings))),
            expose=None if self.expose is None else Exposure(self.expose),
            placeholder=self.placeholder,
            version=self.version,
            created_at=self.created_at,
            changed_at=self.changed_at,
            changed_by=self.changed_by,
        )


class NamedSecretStore(Protocol):
    """The secrets of a tenant, and what happened to them. What has returned is on disk, unless it says otherwise.

    A change and its event are written together. The newest `MOST_EVENTS` events of a name are kept, also once the
    secret is removed.
    """

    async def load_all(self) -> list[SecretRow]: ...

    async def put(self, row: SecretRow, event: SecretEvent) -> None:
        """Write a row, in place of the one of that name."""

    async def remove(self, name: str, event: SecretEvent) -> bool:
        """Remove a row. Returns whether there was one; if not, nothing is written."""

    async def add_events(self, events: Sequence[tuple[str, SecretEvent]]) -> None:
        """Add events, each with the name of its secret. A power cut may lose them."""

    async def events(self, name: str, limit: int) -> list[SecretEvent]:
        """Returns the newest events of a name, newest first."""
        ...
