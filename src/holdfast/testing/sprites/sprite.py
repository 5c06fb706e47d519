"""One sprite of the counterpart: a local box with services, sessions, checkpoints and a network policy."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.api.box.box import Box, Power
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxError
from holdfast.egress import EgressProxy
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.local import LocalProvider
from holdfast.testing.sprites.network import environment, open_network, policy_of
from holdfast.testing.sprites.services import Services
from holdfast.testing.sprites.sessions import Session

CHECKPOINTS: Final = "/.sprite/checkpoints"
"""Where the latest checkpoints of a sprite can be read, inside it."""
_MOUNTED: Final = 5
_COPIED: Final = ("/home/box", "/workspace")
Prepare = Callable[[Box], Awaitable[None]]
"""Puts into the box of a new sprite what sprites have from the beginning."""
_OPEN: Final = ({"domain": "*", "action": "allow"},)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    id: str
    snapshot: str
    created: datetime
    comment: str

    def describe(self) -> dict[str, Any]:
        return {"id": self.id, "create_time": self.created.isoformat(), "comment": self.comment}


class Sprite:
    def __init__(
        self,
        provider: LocalProvider,
        egress: EgressProxy,
        name: str,
        box: Box,
        labels: list[str],
        environment: Mapping[str, str],
    ) -> None:
        self.name = name
        self._environment = environment
        self.id = f"sprite-{secrets.token_hex(8)}"
        self.labels = labels
        self.url_settings: dict[str, Any] = {"auth": "sprite"}
        self.rules: list[dict[str, Any]] = [dict(each) for each in _OPEN]
        self.created = self.updated = datetime.now(UTC)
        self.sessions: dict[str, Session] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.services = Services(box)
        self.deleted = False
        self._provider = provider
        self._egress = egress
        self._box = box
        self._versions = 0
        self._lock = asyncio.Lock()

    @classmethod
    async def create(
        cls,
        provider: LocalProvider,
        egress: EgressProxy,
        name: str,
        labels: list[str],
        environment: Mapping[str, str],
        prepare: Prepare | None,
    ) -> Sprite:
        whole = {**_environment(egress), **environment}
        box = await provider.create(BoxSpec(env=whole), id=_box_id())
        if prepare is not None:
            await prepare(box)
        sprite = cls(provider, egress, name, box, labels, whole)
        await sprite._connect()
        return sprite

    def describe(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "organization": "counterpart",
            "status": "cold" if self._asleep else "running",
            "url": f"https://{self.name}-{self.id[-5:]}.sprites.app",
            "url_settings": self.url_settings,
            "labels": self.labels,
            "created_at": self.created.isoformat(),
            "updated_at": self.updated.isoformat(),
        }

    _asleep = False

    async def awake(self) -> Box:
        """Returns its box. Starts a sprite that sleeps, or whose machine died."""
        if self._asleep or await self._box.power() is Power.STOPPED:
            async with self._lock:
                if self._asleep or await self._box.power() is Power.STOPPED:
                    if not self._asleep:
                        await self._end_sessions()
                        await self.services.shut_down()
                    await self._box.start()
                    await self._connect()
                    self._asleep = False
                    await self.services.boot()
        return self._box

    async def sleep(self) -> None:
        """Stop it as a sprite that was idle for long: processes end, and services start again when it wakes."""
        async with self._lock:
            await self._end_sessions()
            await self.services.shut_down()
            await self._box.stop()
            self._asleep = True

    async def delete(self) -> None:
        self.deleted = True
        async with self._lock:
            await self._end_sessions()
            for service in self.services:
                if service.task is not None:
                    service.wanted = False
                    service.task.cancel()
            self._egress.dismiss(self.name)
            await self._provider.remove(self._box.id)
            for each in self.checkpoints.values():
                await self._forget(each)
            self.checkpoints.clear()

    async def set_rules(self, rules: list[dict[str, Any]]) -> None:
        policy = policy_of(rules)
        self.rules = rules
        self._egress.admit(self.name, policy, {})

    # --- checkpoints ---

    async def checkpoint(self, comment: str) -> Checkpoint:
        box = await self.awake()
        async with self._lock:
            snapshot = await box.snapshot()
            self._versions += 1
            made = Checkpoint(f"v{self._versions}", snapshot.id, datetime.now(UTC), comment)
            await self._mount(box, made)
            self.checkpoints[made.id] = made
            return made

    async def _mount(self, box: Box, checkpoint: Checkpoint) -> None:
        """Make the files of a checkpoint readable in the sprite. It is a copy: nothing can be mounted there."""
        scratch = await self._provider.restore(checkpoint.snapshot, BoxSpec(), id=_box_id())
        try:
            for folder in _COPIED:
                target = f"{CHECKPOINTS}/{checkpoint.id}{folder}"
                await box.files.mkdir(target)
                await box.files.upload_tar(scratch.files.download_tar(folder), target)
        finally:
            await scratch.delete()
        old = f"{CHECKPOINTS}/v{self._versions - _MOUNTED}"
        await box.exec(["rm", "-rf", old], cwd="/")

    async def restore(self, checkpoint: Checkpoint) -> None:
        """Replace its files. Sessions end, and services start again."""
        async with self._lock:
            await self._end_sessions()
            await self.services.shut_down()
            old = self._box
            self._box = await self._provider.restore(
                checkpoint.snapshot, BoxSpec(env=dict(self._environment)), id=_box_id()
            )
            self.services.box = self._box
            self._egress.dismiss(self.name)
            await self._connect()
            await self._provider.remove(old.id)
            self._asleep = False
            await self.services.boot()

    async def delete_checkpoint(self, checkpoint: Checkpoint) -> None:
        del self.checkpoints[checkpoint.id]
        await self._forget(checkpoint)
        if await self._box.power() is Power.RUNNING:
            await self._box.exec(["rm", "-rf", f"{CHECKPOINTS}/{checkpoint.id}"], cwd="/")

    async def _forget(self, checkpoint: Checkpoint) -> None:
        with contextlib.suppress(BoxError):
            await self._provider.delete_snapshot(checkpoint.snapshot)

    # --- its parts ---

    async def _connect(self) -> None:
        guest = GuestClient(self._box.id, self._provider.data_dir.box(self._box.id))
        self._egress.dismiss(self.name)
        await open_network(self._egress, self.name, guest, policy_of(self.rules))

    async def _end_sessions(self) -> None:
        sessions = list(self.sessions.values())
        self.sessions.clear()
        await asyncio.gather(*(each.end() for each in sessions))


def _box_id() -> str:
    return f"s-{secrets.token_hex(8)}"


def _environment(egress: EgressProxy) -> dict[str, str]:
    return environment(egress, policy_of(_OPEN))
