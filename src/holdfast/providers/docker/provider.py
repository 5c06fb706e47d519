"""Boxes that are containers of a Docker daemon, on this machine or another one.

A box has only a loopback network. Its first process is our guest. It is reached over its own stdin and stdout, or later
over those of a bridge process in the container, so only the daemon's socket is needed. Snapshots are images and volumes
are Docker volumes. All are found by their labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping
from typing import Any

from holdfast.api.box.box import Box, BoxInfo, Liveness, Power, Wake
from holdfast.api.box.network import Network
from holdfast.api.box.records import Step
from holdfast.api.box.snapshots import Snapshot, Volume
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import (
    BoxError,
    BoxNotFound,
    BoxUnreachable,
    CannotIsolate,
)
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import matches
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider, Swept
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.diagnosis import diagnose_box, take_step
from holdfast.providers.docker import runtime as runtime_module
from holdfast.providers.docker import sweep, volumes
from holdfast.providers.docker.containers import size_of
from holdfast.providers.docker.engine import DockerHost, Engine, EngineProblem, refusals_named
from holdfast.providers.docker.images import DockerImages
from holdfast.providers.docker.lifecycle import CAPABILITIES, ContainerLifecycle
from holdfast.providers.docker.objects import BOX, SNAPSHOT_KIND, Kind, Maker, Names
from holdfast.providers.docker.runtime import Runtime, RuntimeVolume
from holdfast.providers.docker.snapshots import Snapshots
from holdfast.providers.namespace import check_namespace
from holdfast.providers.stream import StreamEgress

log = logging.getLogger(__name__)


class DockerProvider(Provider):
    """Boxes at one daemon. `namespace` separates them from those of other homes at the same daemon."""

    name = "docker"
    snapshot_kind = SNAPSHOT_KIND
    isolation = "container"
    capabilities: frozenset[Capability] = CAPABILITIES
    images: DockerImages
    takes_checkpoints = True
    checkpoint_policy = "every keep=10 total=5G size=500M"
    """Each copies everything that the container has written, which a local one does not."""

    def __init__(
        self,
        host: DockerHost | None = None,
        *,
        namespace: str,
        runtime: str | None = None,
        image: str | None = None,
        egress: Egress | None = None,
    ) -> None:
        """`runtime` is one of the daemon's OCI runtimes, such as runc, runsc or kata; None for its default.

        `image` is for boxes whose spec has none.
        """
        check_namespace(namespace)
        self.engine = Engine(host or DockerHost())
        self.names = Names(namespace)
        self._me = Maker.this()
        self._oci_runtime = runtime
        self._egress = StreamEgress(egress)
        self._runtime = RuntimeVolume(self.engine)
        self._snapshots = Snapshots(self.engine, self.names, self.name)
        self.images = DockerImages(self.engine, self._snapshots)
        self.lifecycle = ContainerLifecycle(
            self.engine,
            self.names,
            self._snapshots,
            self._runtime,
            self._egress,
            self._me,
            oci_runtime=runtime,
            default_image=image,
        )
        self._reconnecting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        info = await self.engine.open()
        try:
            self._check_daemon(info)
            await self.lifecycle.open(info)
        except BaseException:
            await self.engine.close()
            raise
        self.capabilities = self.lifecycle.capabilities
        if self._egress.exists:
            self._reconnecting = asyncio.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Serve the egress of boxes that kept running without a server, before anyone attaches to them."""
        try:
            infos = [info for info in await self.find() if info.power is Power.RUNNING]
        except BoxError as error:
            log.warning("cannot restore the egress of boxes at Docker: %s", error)
            return
        for info in infos:
            if info.spec.network.mode is not Network.NONE:
                try:
                    await self.attach(info.id)
                except BoxError as error:
                    log.warning("cannot restore the egress of box %s: %s", info.id, error)

    def _check_daemon(self, info: Mapping[str, Any]) -> None:
        if not runtime_module.same_machine(info):
            raise CannotIsolate(
                f"the Docker daemon runs {info.get('OSType')} on {info.get('Architecture')}, which is not "
                "what this machine is: the guest could not run there",
                hint="run the server on a machine of the daemon's kind",
            )
        known = info.get("Runtimes") or {}
        if self._oci_runtime is not None and self._oci_runtime not in known:
            raise CannotIsolate(
                f"the Docker daemon has no runtime {self._oci_runtime}: it has {', '.join(sorted(known))}",
                hint="add it to the daemon's configuration, or choose another with --docker-runtime",
            )

    async def close(self) -> None:
        if self._reconnecting is not None:
            self._reconnecting.cancel()
            await asyncio.gather(self._reconnecting, return_exceptions=True)
            self._reconnecting = None
        try:
            await self.lifecycle.close()
        finally:
            await self.engine.close()

    async def runtime(self) -> Runtime:
        """Returns what is mounted into boxes. The first call puts it at the daemon."""
        return await self._runtime.get()

    # --- boxes ---

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        return await self.lifecycle.create(spec, id, labels or {})

    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        return await self.lifecycle.restore(snapshot, spec, id, labels or {})

    async def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> Box:
        return await self.lifecycle.hand_over(id, spec, labels, created_at)

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        return await self.lifecycle.all(labels or {})

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        return await self.lifecycle.attach(id, wake)

    async def probe(self, id: str) -> Liveness:
        try:
            await self.lifecycle.check_exists(id)
        except BoxNotFound:
            return Liveness.GONE
        except (BoxUnreachable, EngineProblem):
            return Liveness.UNKNOWN
        return Liveness.LIVE

    async def remove(self, id: str) -> int:
        return await self.lifecycle.remove(id)

    # --- snapshots ---

    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        with refusals_named("snapshots cannot be listed"):
            return [each for each in await self._snapshots.all() if matches(each.labels, labels or {})]

    async def snapshot(self, id: str) -> Snapshot:
        with refusals_named(f"snapshot {id} cannot be inspected"):
            return await self._snapshots.get(id)

    async def snapshot_cost(self, id: str) -> int | None:
        with refusals_named(f"the size of box {id} is unknown"):
            return await size_of(self.engine, self.names.box(id))

    async def delete_snapshot(self, id: str) -> int:
        with refusals_named(f"snapshot {id} cannot be deleted"):
            return await to_the_end(self._snapshots.delete(id))

    async def export_snapshot(self, id: str) -> AsyncIterator[bytes]:
        with refusals_named(f"snapshot {id} cannot be exported"):
            async with contextlib.aclosing(self._snapshots.export(id)) as pieces:
                async for piece in pieces:
                    yield piece

    async def import_snapshot(self, stream: AsyncIterable[bytes]) -> Snapshot:
        return await self._snapshots.import_(stream)

    # --- volumes ---

    async def create_volume(self, name: str) -> Volume:
        with refusals_named(f"volume {name} cannot be made"):
            return await volumes.create(self.engine, self.names, name)

    async def volumes(self) -> list[Volume]:
        with refusals_named("volumes cannot be listed"):
            return await volumes.all_volumes(self.engine, self.names)

    async def delete_volume(self, name: str) -> int:
        with refusals_named(f"volume {name} cannot be deleted"):
            return await to_the_end(volumes.delete(self.engine, self.names, await self.runtime(), name))

    # --- housekeeping ---

    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        removed: list[str] = []
        freed = 0
        with refusals_named("leftovers cannot be swept away"):
            for each in await self.engine.containers(self.names.labels(Kind.BOX)):
                labels = each.get("Labels") or {}
                id = str(labels.get(BOX))
                why = sweep.why_remove(id, str(each.get("State")), labels, keep, self._me, time.time())
                if why is None:
                    continue
                box_freed = await self.lifecycle.remove_unused(id)
                if box_freed is not None:
                    freed += box_freed
                    removed.append(f"box {id}: {why}")
            more, bytes_freed = await sweep.sweep_objects(self.engine, self.names, self._me)
            removed += await runtime_module.sweep(self.engine, self._me)
        return Swept((*removed, *more), freed + bytes_freed)

    async def diagnose(self, id: str | None = None) -> list[Step]:
        steps = [await take_step("docker daemon", self._check_info, "docker info")]
        if steps[-1].ok:
            steps.append(await take_step("guest", self._check_guest, "docker info"))
        if id is not None and all(step.ok for step in steps):
            steps += await diagnose_box(self, id)
        return steps

    async def _check_info(self) -> str:
        with refusals_named("the daemon cannot be queried"):
            info = await self.engine.ask("GET", "info")
        chosen = self._oci_runtime or info.get("DefaultRuntime")
        return f"{info.get('ServerVersion')} at {self.engine.host.address}, {info.get('Driver')}, runtime {chosen}"

    async def _check_guest(self) -> str:
        return f"on volume {(await self.runtime()).volume}"
