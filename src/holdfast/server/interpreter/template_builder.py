"""Templates of a server's interpreters: declared in its home, built in its boxes."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import SnapshotNotFound
from holdfast.api.progress import Progress
from holdfast.images.build_host import ProviderBuildHost
from holdfast.interpreter.workspace.templates import Templates

if TYPE_CHECKING:
    from holdfast.boxes.service.boxes import Boxes

NetworkReady = Callable[[], Awaitable[None]]
"""Returns when boxes with a network can reach what the policies allow."""


class BoxBuildHost(ProviderBuildHost):
    """A provider of the server. Boxes are created by the service, so that it knows about them."""

    def __init__(self, boxes: Boxes, network_ready: NetworkReady, provider: str) -> None:
        super().__init__(boxes.provider(provider))
        self._boxes = boxes
        self._network_ready = network_ready

    async def create(self, spec: BoxSpec) -> Box:
        await self._ready(spec)
        return await self._boxes.open((await self._boxes.create(spec)).id)

    async def restore(self, snapshot: str, spec: BoxSpec) -> Box:
        await self._ready(spec)
        return await self._boxes.open((await self._boxes.restore(snapshot, spec)).id)

    async def snapshots(self) -> list[Snapshot]:
        return [each for each in await self._boxes.snapshots() if each.provider == self.provider]

    async def delete_snapshot(self, id: str) -> None:
        with contextlib.suppress(SnapshotNotFound):
            await self._boxes.delete_snapshot(id)

    async def _ready(self, spec: BoxSpec) -> None:
        if spec.network.mode is not Network.NONE:
            await self._network_ready()


class ServerTemplates:
    """One for each provider, so that requests for the same template wait for a single build."""

    def __init__(self, boxes: Boxes, network_ready: NetworkReady, home: Path, environment: Mapping[str, str]) -> None:
        self._boxes = boxes
        self._network_ready = network_ready
        self._home = home
        self._environment = environment
        self._of_provider: dict[str, Templates] = {}

    async def resolve(self, name: str, provider: str, progress: Progress | None = None) -> str:
        """The image of a template. Built first if there is none."""
        if provider not in self._of_provider:
            host = BoxBuildHost(self._boxes, self._network_ready, provider)
            self._of_provider[provider] = Templates.of_home(host, self._home, self._environment)
        return await self._of_provider[provider].resolve(name, progress)
