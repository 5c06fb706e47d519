"""Stores changes of boxes at the daemon. Labels of Docker objects cannot change, so each change is an empty volume that
carries labels. `objects.latest` finds the current one."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import replace
from typing import Any

from holdfast.api.errors.boxes import BoxConflict
from holdfast.providers.docker.engine import Engine, EngineProblem
from holdfast.providers.docker.objects import BOX, NONCE, RECORD, BoxRecord, Kind, Names, latest


class Changes:
    def __init__(self, engine: Engine, names: Names) -> None:
        self._engine = engine
        self._names = names

    async def all(self) -> list[dict[str, Any]]:
        """Returns the volumes with the changes of all boxes."""
        return await self._engine.volumes(self._names.labels(Kind.CHANGE))

    async def _of(self, id: str) -> list[dict[str, Any]]:
        return await self._engine.volumes(self._names.labels(Kind.CHANGE, **{BOX: id}))

    async def latest(self, record: BoxRecord) -> BoxRecord:
        """Returns the current state of a box. `record` is its state when created."""
        return latest(record, await self._of(record.id))

    async def write(self, record: BoxRecord) -> BoxRecord:
        """Store a change of a box. If several processes write the next change, the daemon accepts one."""
        number, nonce = record.change + 1, secrets.token_hex(8)
        labels = self._names.labels(Kind.CHANGE, **{BOX: record.id, RECORD: record.to_text(), NONCE: nonce})
        made = await self._engine.create_volume(self._names.change(record.id, number), labels)
        if (made.get("Labels") or {}).get(NONCE) != nonce:
            raise BoxConflict(f"another process has changed box {record.id}")
        if number > 1:
            await self.forget(record.id, before=number)
        return replace(record, change=number)

    async def forget(self, id: str, before: int | None = None) -> None:
        """Delete the changes of a box, all or those before a number."""
        for each in await self._of(id):
            if before is None or int(str(each["Name"]).rpartition(".")[2]) < before:
                with contextlib.suppress(EngineProblem):
                    await self._engine.remove_volume(each["Name"])
