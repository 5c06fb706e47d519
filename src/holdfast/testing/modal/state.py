"""The state of the counterpart of Modal: apps, images, volumes and sandboxes, in memory."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from grpclib import GRPCError, Status
from modal_proto import api_pb2

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec, VolumeMount
from holdfast.api.ids import new_id
from holdfast.providers.local import LocalProvider
from holdfast.testing.modal.sandboxes import Sandbox, random_id

_MEGABYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    name: str
    snapshot: str | None = None
    """The local snapshot that it was made from."""


@dataclass(frozen=True, slots=True)
class Volume:
    id: str
    """Also the name of the local volume."""
    name: str
    created_at: float

    @property
    def metadata(self) -> api_pb2.VolumeMetadata:
        return api_pb2.VolumeMetadata(name=self.name, creation_info=api_pb2.CreationInfo(created_at=self.created_at))


Prepare = Callable[[Box], Awaitable[None]]


class CloudState:
    def __init__(
        self, local: LocalProvider, registry: Collection[str], context: ssl.SSLContext, prepare: Prepare | None
    ) -> None:
        """`registry` has the names of images that can be pulled. They all are the local box without an image."""
        self.local = local
        self.registry = frozenset(registry)
        self.secret = secrets.token_hex(32)
        self.router_url = ""
        self.apps: dict[str, str] = {}
        self.images: dict[str, Image] = {}
        self.volumes: dict[str, Volume] = {}
        self.sandboxes: dict[str, Sandbox] = {}
        """All sandboxes that ever existed, by id."""
        self.secrets: dict[str, dict[str, str]] = {}
        self.stale_list: list[Sandbox] | None = None
        """Sandboxes to list instead of the running ones, or None."""
        self._context = context
        self._prepare = prepare

    # --- images ---

    def image_named(self, name: str) -> Image | None:
        if name not in self.registry and name.partition(":")[0] not in self.registry:
            return None
        for image in self.images.values():
            if image.name == name:
                return image
        return self.keep(Image(random_id("im"), name))

    def keep(self, image: Image) -> Image:
        self.images[image.id] = image
        return image

    # --- volumes ---

    def files_of(self, volume: Volume) -> dict[str, int]:
        """Returns the files of a volume, with their sizes. Blocks."""
        root = self.local.data_dir.volumes / volume.id
        return {
            str(path.relative_to(root)): path.lstat().st_size
            for path in root.rglob("*")
            if path.is_file() and not path.is_symlink()
        }

    # --- sandboxes ---

    async def start(self, sandbox: Sandbox, image: Image, env: Mapping[str, str]) -> None:
        resources = sandbox.definition.resources
        spec = BoxSpec(
            provider="local",
            cpu=resources.milli_cpu_max / 1000 if resources.milli_cpu_max else None,
            memory=resources.memory_mb_max * _MEGABYTE if resources.memory_mb_max else None,
            volumes=tuple(
                VolumeMount(each.volume_id, each.mount_path, each.sub_path.strip("/"), each.read_only)
                for each in sandbox.definition.volume_mounts
            ),
        )
        id = new_id("b")
        if image.snapshot is None:
            box = await self.local.create(spec, id=id)
        else:
            box = await self.local.restore(image.snapshot, spec, id=id)
        try:
            if self._prepare is not None and image.snapshot is None:
                await self._prepare(box)
            await sandbox.start(box, env, self._context)
        except BaseException:
            await self.local.remove(id)
            raise

    def sandbox(self, id: str) -> Sandbox:
        if id not in self.sandboxes:
            raise GRPCError(Status.NOT_FOUND, f"Sandbox {id} not found")
        return self.sandboxes[id]

    def by_task(self, task_id: str) -> Sandbox:
        for each in self.sandboxes.values():
            if each.task_id == task_id:
                return each
        raise GRPCError(Status.NOT_FOUND, f"Task {task_id} not found")

    def running(self, app_id: str, name: str) -> Sandbox | None:
        for each in self.sandboxes.values():
            if (each.app_id, each.name) == (app_id, name) and each.result is None:
                return each
        return None

    def listed(self) -> list[Sandbox]:
        if self.stale_list is not None:
            return list(self.stale_list)
        return [each for each in self.sandboxes.values() if each.result is None]
