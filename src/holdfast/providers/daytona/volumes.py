"""Volumes at Daytona. Those of a home have its namespace in their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from daytona import DaytonaConflictError, DaytonaNotFoundError, VolumeMount

from holdfast.api.box.snapshots import Volume
from holdfast.api.box.spec import BoxSpec, check_name
from holdfast.api.errors.boxes import Unsupported, VolumeExists, VolumeInUse, VolumeNotFound
from holdfast.providers.daytona.api import DaytonaApi, milliseconds
from holdfast.providers.daytona.records import BoxRecord

_GONE: Final = ("deleted", "deleting", "pending_delete")


class Volumes:
    def __init__(self, api: DaytonaApi, namespace: str) -> None:
        self._api = api
        self._prefix = f"hf-{namespace}-"

    def _name(self, name: str) -> str:
        check_name(name, "volume")
        return self._prefix + name

    async def create(self, name: str) -> Volume:
        whole = self._name(name)
        try:
            made = await self._api.create_volume(whole)
        except DaytonaConflictError:
            raise VolumeExists(f"there is a volume {name} already") from None
        return Volume(name, milliseconds(made.created_at))

    async def all(self) -> list[Volume]:
        found = [
            Volume(each.name.removeprefix(self._prefix), milliseconds(each.created_at))
            for each in await self._api.volumes()
            if each.name.startswith(self._prefix) and str(getattr(each.state, "value", each.state)) not in _GONE
        ]
        return sorted(found, key=lambda volume: volume.name)

    async def delete(self, name: str, records: Iterable[BoxRecord]) -> None:
        whole = self._name(name)
        for record in records:
            if any(mount.volume == name for mount in record.spec.volumes):
                raise VolumeInUse(f"box {record.id} mounts volume {name}", hint=f"holdfast box delete {record.id}")
        try:
            await self._api.delete_volume(await self._api.ready_volume(whole))
        except DaytonaNotFoundError:
            raise VolumeNotFound(f"there is no volume {name}") from None
        except DaytonaConflictError as error:
            raise VolumeInUse(f"volume {name} is in use at Daytona: {error}") from None

    async def mounts(self, spec: BoxSpec) -> list[VolumeMount]:
        """Returns the volumes of a box, once they are ready. Raises `VolumeNotFound`."""
        made = []
        for mount in spec.volumes:
            try:
                volume = await self._api.ready_volume(self._name(mount.volume))
            except DaytonaNotFoundError:
                raise VolumeNotFound(f"there is no volume {mount.volume}") from None
            made.append(VolumeMount(volume_id=volume.id, mount_path=mount.path, subpath=mount.subpath or None))
        return made


def check_mounts(spec: BoxSpec) -> None:
    """Raises `Unsupported` for what Daytona cannot mount."""
    for mount in spec.volumes:
        if mount.read_only:
            raise Unsupported(
                f"provider daytona does not support read-only volumes ({mount.volume})",
                hint="mount it for writing, or use a provider that supports them",
            )
