"""Volumes at Modal. Those of a home have its namespace in their names."""

from __future__ import annotations

import contextlib
from typing import Final

import modal
from modal import exception

from holdfast.api.box.snapshots import Volume
from holdfast.api.box.spec import BoxSpec, check_name
from holdfast.api.errors.boxes import InvalidSpec, VolumeExists, VolumeInUse, VolumeNotFound
from holdfast.providers.modal.account import Account, as_any, limited
from holdfast.providers.modal.records import Records

_LONGEST: Final = 54
"""What Modal leaves of 64 characters beside the namespace."""
_COUNT_SECONDS: Final = 20.0


class Volumes:
    def __init__(self, account: Account, records: Records, namespace: str) -> None:
        self._account = account
        self._records = records
        self._prefix = f"{namespace}."

    def _name(self, name: str) -> str:
        check_name(name, "volume")
        if len(name) > _LONGEST:
            raise VolumeNotFound(f"there is no volume {name}: names at Modal have at most {_LONGEST} characters")
        return self._prefix + name

    async def create(self, name: str) -> Volume:
        whole = self._name(name)
        client = await self._account.client()
        try:
            await limited(
                modal.Volume.objects.create.aio(
                    whole, allow_existing=False, environment_name=self._account.environment, client=client
                )
            )
        except exception.AlreadyExistsError:
            raise VolumeExists(f"there is a volume {name} already") from None
        found = [each for each in await self.list() if each.name == name]
        return found[0] if found else Volume(name, 0)

    async def list(self) -> list[Volume]:
        client = await self._account.client()
        found = await limited(
            modal.Volume.objects.list.aio(environment_name=self._account.environment or "", client=client)
        )
        made = []
        for each in found:
            if each.name is not None and each.name.startswith(self._prefix):
                about = await limited(each.info.aio())
                made.append(Volume(each.name.removeprefix(self._prefix), int(about.created_at.timestamp() * 1000)))
        return sorted(made, key=lambda volume: volume.name)

    async def delete(self, name: str) -> int:
        """Returns the bytes of its files."""
        for record in self._records.boxes():
            if any(mount.volume == name for mount in record.spec.volumes):
                raise VolumeInUse(f"box {record.id} mounts volume {name}", hint=f"holdfast box delete {record.id}")
        client = await self._account.client()
        try:
            whole = self._name(name)
            environment = self._account.environment
            volume = modal.Volume.from_name(whole, environment_name=environment, client=client)
            size = await _size_of(volume)
            await limited(modal.Volume.objects.delete.aio(whole, environment_name=environment, client=client))
        except (exception.NotFoundError, InvalidSpec):
            raise VolumeNotFound(f"there is no volume {name}") from None
        return size

    async def mounts(self, spec: BoxSpec) -> dict[str, modal.Volume]:
        """Returns the volumes of a box by their mount points. Raises `VolumeNotFound`."""
        client = await self._account.client()
        made: dict[str, modal.Volume] = {}
        for mount in spec.volumes:
            volume = modal.Volume.from_name(
                self._name(mount.volume), environment_name=self._account.environment, client=client
            )
            try:
                await limited(as_any(volume).hydrate.aio())
            except exception.NotFoundError:
                raise VolumeNotFound(f"there is no volume {mount.volume}") from None
            made[mount.path] = volume.with_mount_options(
                read_only=mount.read_only, sub_path=f"/{mount.subpath}" if mount.subpath else None
            )
        return made


async def _size_of(volume: modal.Volume) -> int:
    """Returns the bytes of all files, or of those that were listed in time."""
    size = 0

    async def count() -> None:
        nonlocal size
        async for entry in volume.iterdir.aio("/", recursive=True):
            size += entry.size

    with contextlib.suppress(TimeoutError):
        await limited(count(), _COUNT_SECONDS)
    return size
