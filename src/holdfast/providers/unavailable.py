"""Stands in for a provider that cannot work on this machine: refuses every call with the reason."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping
from typing import NoReturn

from holdfast.api.box.box import Box, BoxInfo, Liveness, Wake
from holdfast.api.box.records import Step
from holdfast.api.box.snapshots import Snapshot, Volume
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError, SnapshotNotFound
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider, Swept


class UnavailableProvider(Provider):
    """Finds no snapshots, reports every box as `unknown`, and refuses all else with the error from opening it."""

    def __init__(self, name: str, error: BoxError) -> None:
        self.name = name
        # All of them, so that a request is refused for the true reason and not for a missing capability.
        self.capabilities = frozenset(Capability)
        self.snapshot_kind = ""
        self._error = error

    def _refuse(self) -> NoReturn:
        raise type(self._error)(self._error.message, hint=self._error.hint)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def check_usable(self) -> None:
        self._refuse()

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        self._refuse()

    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        self._refuse()

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        self._refuse()  # an empty list would mean that its boxes are gone

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        self._refuse()

    async def probe(self, id: str) -> Liveness:
        return Liveness.UNKNOWN

    async def remove(self, id: str) -> int:
        self._refuse()

    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        return []

    async def snapshot(self, id: str) -> Snapshot:
        raise SnapshotNotFound(f"snapshot {id} cannot be used: {self._error.message}", hint=self._error.hint)

    async def delete_snapshot(self, id: str) -> int:
        self._refuse()

    async def export_snapshot(self, id: str) -> AsyncIterator[bytes]:
        self._refuse()
        yield b""

    async def import_snapshot(self, stream: AsyncIterable[bytes]) -> Snapshot:
        self._refuse()

    async def create_volume(self, name: str) -> Volume:
        self._refuse()

    async def volumes(self) -> list[Volume]:
        self._refuse()

    async def delete_volume(self, name: str) -> int:
        self._refuse()

    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        return Swept()

    async def diagnose(self, id: str | None = None) -> list[Step]:
        return [Step(f"provider {self.name}", False, 0.0, self._error.message, self._error.hint)]


class AbsentProvider(UnavailableProvider):
    """Replaces an optional provider that this machine does not have. That is not a failure."""

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        return []  # `probe` reports `unknown` for boxes that existed before
