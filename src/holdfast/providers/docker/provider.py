"""Boxes that are containers of a Docker daemon, on this machine or another one.

A box has only a loopback network. Its first process is our guest. It is reached over its own stdin and stdout, or later
over those of a bridge process in the container, so only the daemon's socket is needed. Snapshots are images and volumes
are Docker volumes. All are found by their labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import AsyncIterable, AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.api.box.box import Box, BoxInfo, Liveness, Power, Wake
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.records import Step
from holdfast.api.box.snapshots import Snapshot, Volume
from holdfast.api.box.spec import BoxSpec, check_labels
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    BoxUnreachable,
    CannotIsolate,
    CreateFailed,
    InvalidSpec,
    SnapshotNotFound,
    Unsupported,
)
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.labels import POOL, matches
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider, Swept
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.docker import containers, sweep, volumes
from holdfast.providers.docker import runtime as runtime_module
from holdfast.providers.docker.box import DockerBox, workdir_of
from holdfast.providers.docker.changes import Changes
from holdfast.providers.docker.egress import ContainerEgress
from holdfast.providers.docker.engine import DockerHost, Engine, EngineProblem, told
from holdfast.providers.docker.images import DockerImages, resolve_image
from holdfast.providers.docker.namespace import check_namespace
from holdfast.providers.docker.objects import (
    BOX,
    KIND,
    MAKER,
    NAMESPACE,
    RECORD,
    SNAPSHOT_KIND,
    BoxRecord,
    Kind,
    Maker,
    Names,
    latest,
)
from holdfast.providers.docker.snapshots import Snapshots
from holdfast.providers.docker.transport import DockerTransport
from holdfast.providers.guest_answers import GuestRefused
from holdfast.providers.steps import take_step
from holdfast.providers.stream import RUN, StreamGuestClient

log = logging.getLogger(__name__)

_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_START_SECONDS: Final = 60.0
_GRACE_MS: Final = 1500
_TOUCH_SECONDS: Final = 10.0
_AT_ONCE: Final = 8
"""Containers that are started at once: the daemon does not get quicker by more."""
CAPABILITIES: Final = frozenset(Capability) - {
    Capability.PREVIEW,
    Capability.DISK_LIMIT,
    Capability.HOST_MOUNTS,
    Capability.NETWORK_ALLOW,
    Capability.NETWORK_OPEN,
    Capability.NETWORK_LIVE,
}
"""What every daemon can do. A disk limit depends on its storage, the rest on where it is and on what we are given."""


@dataclass(slots=True)
class _Held:
    """What this process holds for one box."""

    guest: StreamGuestClient
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    first: DockerTransport | None = None
    """The stdin and stdout of a process 1 that is about to start."""
    users: int = 0


class DockerProvider(Provider):
    """Boxes at one daemon. `namespace` separates them from those of other homes at the same daemon."""

    name = "docker"
    snapshot_kind = SNAPSHOT_KIND
    isolation = "container"
    capabilities: frozenset[Capability] = CAPABILITIES
    images: DockerImages

    def __init__(
        self,
        host: DockerHost | None = None,
        *,
        namespace: str,
        runtime: str | None = None,
        image: str | None = None,
        egress: Egress | None = None,
    ) -> None:
        check_namespace(namespace)
        self.engine = Engine(host or DockerHost())
        self.names = Names(namespace)
        self.oci_runtime = runtime
        """Of the daemon: runc, runsc, kata; None for its own choice."""
        self.default_image = image
        """For boxes that ask for none."""
        self._egress = None if egress is None else ContainerEgress(egress)
        self._runtime: runtime_module.Runtime | None = None
        self._preparing = asyncio.Lock()
        self._resuming: asyncio.Task[None] | None = None
        self._held: dict[str, _Held] = {}
        self._starts = asyncio.Semaphore(_AT_ONCE)
        self._info: Mapping[str, Any] = {}
        self._me = Maker.this()
        self._changes = Changes(self.engine, self.names)
        self._snapshots = Snapshots(self.engine, self.names, self.name)
        self.images = DockerImages(self.engine, self._snapshots)

    async def open(self) -> None:
        self._info = await self.engine.open()
        try:
            self._check_daemon()
            limits_disk = await containers.limits_disk(self.engine, self.names, self._info)
        except BaseException:
            await self.engine.close()
            raise
        claimed = set(CAPABILITIES)
        if self.engine.host.is_local:
            claimed.add(Capability.HOST_MOUNTS)
        if self._egress is not None:
            claimed |= {Capability.NETWORK_ALLOW, Capability.NETWORK_OPEN, Capability.NETWORK_LIVE}
        if limits_disk:
            claimed.add(Capability.DISK_LIMIT)
        self.capabilities = frozenset(claimed)
        if self._egress is not None:
            self._resuming = asyncio.create_task(self._resume())

    async def _resume(self) -> None:
        """Serve the egress of boxes that ran on while there was no server, before anybody asks for them."""
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

    def _check_daemon(self) -> None:
        if not runtime_module.same_machine(self._info):
            raise CannotIsolate(
                f"the Docker daemon runs {self._info.get('OSType')} on {self._info.get('Architecture')}, which is not "
                "what this machine is: the guest could not run there",
                hint="run the server on a machine of the daemon's kind",
            )
        known = self._info.get("Runtimes") or {}
        if self.oci_runtime is not None and self.oci_runtime not in known:
            raise CannotIsolate(
                f"the Docker daemon has no runtime {self.oci_runtime}: it has {', '.join(sorted(known))}",
                hint="add it to the daemon's configuration, or choose another with --docker-runtime",
            )

    async def close(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
            self._resuming = None
        if self._egress is not None:
            self._egress.close_all()
        held, self._held = self._held, {}
        try:
            await asyncio.gather(*(each.guest.close() for each in held.values()), return_exceptions=True)
        finally:
            await self.engine.close()

    async def runtime(self) -> runtime_module.Runtime:
        """What is mounted into boxes; put at the daemon by the first who asks."""
        if self._runtime is None:
            async with self._preparing:
                if self._runtime is None:
                    self._runtime = await to_the_end(runtime_module.prepare(self.engine))
        return self._runtime

    # --- the way to a box ---

    def held(self, id: str) -> _Held:
        if id not in self._held:
            self._held[id] = _Held(StreamGuestClient(id, lambda: self._dial(id), lambda: self._verdict(id)))
        return self._held[id]

    def guest(self, id: str) -> StreamGuestClient:
        return self.held(id).guest

    async def _verdict(self, id: str) -> BoxError | None:
        """What became of a box whose stream was lost; None where it runs."""
        try:
            stopped = await self.power(id) is Power.STOPPED
        except BoxGone as gone:
            return gone
        return BoxStopped(f"box {id} is stopped", hint=f"holdfast box start {id}") if stopped else None

    async def _dial(self, id: str) -> DockerTransport:
        held = self.held(id)
        if held.first is not None:
            transport, held.first = held.first, None
            return transport
        power = await self.power(id)
        if power is Power.STOPPED:
            raise BoxStopped(f"box {id} is stopped", hint=f"holdfast box start {id}")
        if power is Power.PAUSED:
            raise BoxStopped(f"box {id} is paused", hint=f"resume it: holdfast box start {id}")
        made = await self.runtime()
        try:
            return DockerTransport(await self.engine.execute(self.names.box(id), made.bridge(RUN)))
        except EngineProblem as problem:
            # It ended, or went, since we looked.
            if await self.power(id) is Power.STOPPED:
                raise BoxStopped(f"box {id} is stopped", hint=f"holdfast box start {id}") from None
            raise BoxUnreachable(f"box {id} cannot be reached: Docker says: {problem.message}") from None

    # --- making ---

    def check(self, spec: BoxSpec, id: str, labels: Mapping[str, str]) -> None:
        """Refuse what cannot be, before anything is made."""
        require(self.name, self.capabilities, *needed(spec))
        _check_id(id)
        check_labels(labels)
        for place in [each.path for each in spec.volumes] + [each.path for each in spec.mounts] + [spec.workdir]:
            if place == "/" or any(f"{place}/".startswith(f"{own}/") for own in containers.OWN_PLACES):
                raise InvalidSpec(f"{place} cannot be used for files of a box at Docker: it is reserved")

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        self.check(spec, id, labels or {})
        with told(f"box {id} cannot be made"):
            image = await resolve_image(self.engine, spec.image or self.default_image)
            return await self._make(spec, id, labels or {}, image, None)

    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        require(self.name, self.capabilities, Capability.SNAPSHOTS)
        self.check(spec, id, labels or {})
        with told(f"box {id} cannot be made"):
            image = await self._snapshots.image(snapshot)
            return await self._make(spec, id, labels or {}, image, snapshot)

    async def _make(
        self, spec: BoxSpec, id: str, labels: Mapping[str, str], image: Mapping[str, Any], snapshot: str | None
    ) -> Box:
        record = BoxRecord(id, spec, {**spec.labels, **labels}, now_ms(), snapshot)
        # Files of a snapshot, or of a fork, are of a box that had a folder of its own: then that of the spec counts.
        ours = ((image.get("Config") or {}).get("Labels") or {}).get(KIND) in (Kind.SNAPSHOT, Kind.FORK)
        workdir = spec.workdir if ours else workdir_of(image, spec)
        mounts = await volumes.mounts(self.engine, self.names, spec)
        held = self.held(id)
        if held.lock.locked():
            raise BoxConflict(f"another process is changing box {id}")
        async with held.lock:
            try:
                await self._make_container(record, image, mounts, workdir, held)
            except CreateFailed as error:
                # Somebody removed the guest's volume while no box used it: it is put there again, once.
                if runtime_module.PLACE not in error.message:
                    raise
                self._runtime = None
                await self._make_container(record, image, mounts, workdir, held)
        found = {"Config": {**(image.get("Config") or {}), "WorkingDir": workdir}}
        return DockerBox(self, self._describe(record, Power.RUNNING), found)

    async def _make_container(
        self, record: BoxRecord, image: Mapping[str, Any], mounts: volumes.Mounts, workdir: str, held: _Held
    ) -> None:
        await self._create_container(record, image, await self.runtime(), mounts, workdir)
        try:
            try:
                await self._bring_up(record, held)
            except EngineProblem as problem:
                raise _explained(record.id, problem) from None
        except BaseException:
            await to_the_end(self._take_down(record.id))
            raise

    async def _create_container(
        self,
        record: BoxRecord,
        image: Mapping[str, Any],
        made: runtime_module.Runtime,
        mounts: volumes.Mounts,
        workdir: str,
    ) -> None:
        """The container, or nothing: also when we are cancelled, since the daemon is not."""
        id = record.id
        labels = self.names.labels(Kind.BOX, **{BOX: id, RECORD: record.to_text(), MAKER: str(self._me)})

        async def create() -> None:
            parts = await volumes.make_parts(self.engine, self.names, id, mounts, self._me)
            config = containers.configure(
                record, str(image["Id"]), labels, made, [*mounts.whole, *parts], workdir, self.oci_runtime
            )
            try:
                await self.engine.create_container(self.names.box(id), config)
            except EngineProblem as problem:
                if not problem.conflict:
                    await volumes.remove_parts(self.engine, self.names, id)
                    raise
                raise BoxConflict(f"there is a docker box {id} already") from None

        try:
            await to_the_end(create())
        except asyncio.CancelledError:
            with contextlib.suppress(EngineProblem):
                found = await to_the_end(self._own(id))
                if found:
                    await to_the_end(self._take_down(id))
            raise
        except EngineProblem as problem:
            if problem.missing and record.snapshot is not None:
                raise SnapshotNotFound(f"there is no snapshot {record.snapshot}") from None
            raise _explained(id, problem) from None

    async def _own(self, id: str) -> bool:
        """Whether there is a container that was never started: ours, if we are the ones who are making it."""
        try:
            found = await self.engine.container(self.names.box(id))
        except EngineProblem as problem:
            if problem.missing:
                return False
            raise
        labels = (found.get("Config") or {}).get("Labels") or {}
        return bool(found["State"]["Status"] == "created" and labels.get(MAKER) == str(self._me))

    async def _bring_up(self, record: BoxRecord, held: _Held) -> None:
        """Start the container and hear from its guest."""
        id, name = record.id, self.names.box(record.id)
        await held.guest.close()
        held.guest.set_paused(False)
        async with self._starts, volumes.verified_parts(self.engine, self.names, self.runtime, record):
            transport = DockerTransport(await self.engine.attach(name))
            held.first = transport
            try:
                await self.engine.ask("POST", f"containers/{name}/start", seconds=_START_SECONDS)
                if self._egress is not None:
                    await self._egress.open(held.guest, record)
                await held.guest.ask({"op": "ping"}, seconds=_START_SECONDS)
            except (BoxStopped, BoxUnreachable) as error:
                raise CreateFailed(f"box {id} did not start: {transport.last_words or error.message}") from None
            finally:
                if held.first is not None:
                    held.first = None
                    await transport.close()

    async def _take_down(self, id: str) -> int:
        """Remove a container and all of its own; says how many bytes that freed."""
        name = self.names.box(id)
        held = self._held.get(id)
        if self._egress is not None:
            self._egress.close(id)
        freed, image = 0, None
        with contextlib.suppress(EngineProblem):
            found = await self.engine.container(name, size=True)
            freed, image = int(found.get("SizeRw") or 0), str(found["Image"])
            if found["State"]["Status"] == "paused":
                await self.engine.ask("POST", f"containers/{name}/unpause")
        if not await self.engine.remove_container(name):
            freed = 0
        if held is not None:
            await held.guest.close()
        await volumes.remove_parts(self.engine, self.names, id)
        await self._changes.forget(id)
        if image is not None:
            await self._snapshots.clear_fork(image)
        return freed

    # --- finding ---

    def _describe(self, record: BoxRecord, power: Power) -> BoxInfo:
        return BoxInfo(record.id, self.name, record.spec, record.labels, power, record.created_at, record.snapshot)

    async def _look(self, id: str) -> tuple[BoxRecord, Power, dict[str, Any]]:
        """A whole box. Raises `BoxNotFound`."""
        missing = f"there is no docker box {id}"
        if not _ID.fullmatch(id):
            raise BoxNotFound(missing)
        try:
            found = await self.engine.container(self.names.box(id))
        except EngineProblem as problem:
            if problem.missing:
                raise BoxNotFound(missing) from None
            raise
        self._note_power(id, str(found["State"]["Status"]))
        labels = (found.get("Config") or {}).get("Labels") or {}
        record = BoxRecord.from_text(labels.get(RECORD, ""))
        power = containers.power_of(str(found["State"]["Status"]))
        if (
            record is None
            or labels.get(NAMESPACE) != self.names.namespace
            or labels.get(KIND) != Kind.BOX
            or power is None
        ):
            raise BoxNotFound(missing)
        return record, power, found

    def _note_power(self, id: str, state: str) -> None:
        """A box that is paused answers nothing: whoever asks it is told so at once."""
        if id in self._held:
            self._held[id].guest.set_paused(state == "paused")

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        with told("boxes cannot be listed"):
            found, changes = await asyncio.gather(
                self.engine.containers(self.names.labels(Kind.BOX)), self._changes.all()
            )
        infos = []
        for each in found:
            record = BoxRecord.from_text((each.get("Labels") or {}).get(RECORD, ""))
            power = containers.power_of(str(each.get("State")))
            if record is None or power is None:
                continue
            record = latest(record, changes)
            if matches(record.labels, labels or {}):
                infos.append(self._describe(record, power))
        return sorted(infos, key=lambda info: (info.created_at, info.id))

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        with told(f"box {id} cannot be looked at"):
            record, power, found = await self._look(id)
            record = await self._changes.latest(record)
        self.guest(id).set_paused(power is Power.PAUSED)
        if self._egress is not None and power is Power.RUNNING and not self._egress.knows(id):
            await self._egress.open(self.guest(id), record)
        return DockerBox(self, self._describe(record, power), found, wake)

    async def probe(self, id: str) -> Liveness:
        try:
            await self._look(id)
        except BoxNotFound:
            return Liveness.GONE
        except (BoxUnreachable, EngineProblem):
            return Liveness.UNKNOWN
        return Liveness.LIVE

    async def power(self, id: str) -> Power:
        with told(f"box {id} cannot be looked at"):
            try:
                return (await self._look(id))[1]
            except BoxNotFound:
                raise BoxGone(f"box {id} is gone") from None

    # --- life ---

    @contextlib.asynccontextmanager
    async def _alone(self, id: str, what: str) -> AsyncIterator[tuple[BoxRecord, Power, _Held]]:
        """Alone at a whole box, in this process; the daemon sees to it that others do not break it."""
        held = self.held(id)
        with told(what):
            async with held.lock:
                try:
                    record, power, _ = await self._look(id)
                except BoxNotFound:
                    self._held.pop(id, None)
                    raise BoxGone(f"box {id} is gone") from None
                try:
                    yield record, power, held
                except EngineProblem as problem:
                    if problem.missing:
                        raise BoxGone(f"box {id} is gone") from None
                    if problem.conflict:
                        raise BoxConflict(f"{what}: {problem.message}") from None
                    raise

    async def stop_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.STOP)
        async with self._alone(id, f"box {id} cannot be stopped") as (_, power, held):
            if power is not Power.STOPPED:
                await to_the_end(self._stop(id, power, held))

    async def _stop(self, id: str, power: Power, held: _Held) -> None:
        name = self.names.box(id)
        if power is Power.PAUSED:
            await self.engine.ask("POST", f"containers/{name}/unpause")
            held.guest.set_paused(False)
        with contextlib.suppress(BoxError, GuestRefused):
            request = {"op": "shut_down", "grace": _GRACE_MS}
            await held.guest.ask(request, seconds=_GRACE_MS / 1000 + 1)
        if self._egress is not None:
            self._egress.close(id)
        await self.engine.ask("POST", f"containers/{name}/stop", params={"t": 0})
        await held.guest.close()

    async def start_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.STOP)
        async with self._alone(id, f"box {id} cannot be started") as (record, power, held):
            if power is Power.PAUSED:
                await self.engine.ask("POST", f"containers/{self.names.box(id)}/unpause")
                held.guest.set_paused(False)
            elif power is Power.STOPPED:
                await to_the_end(self._start(record, held))

    async def _start(self, record: BoxRecord, held: _Held) -> None:
        try:
            await self._bring_up(await self._changes.latest(record), held)
        except BaseException:
            with contextlib.suppress(EngineProblem):
                await self.engine.ask("POST", f"containers/{self.names.box(record.id)}/stop", params={"t": 0})
            raise

    async def pause_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.PAUSE)
        async with self._alone(id, f"box {id} cannot be paused") as (_, power, held):
            if power is Power.STOPPED:
                raise BoxStopped(f"box {id} is stopped", hint=f"holdfast box start {id}")
            if power is Power.RUNNING:
                held.guest.set_paused(True)
                try:
                    await self.engine.ask("POST", f"containers/{self.names.box(id)}/pause")
                except BaseException:
                    held.guest.set_paused(False)
                    raise

    async def remove(self, id: str) -> int:
        if not _ID.fullmatch(id):
            return 0
        held = self.held(id)
        with told(f"box {id} cannot be removed"):
            async with held.lock:
                freed = await to_the_end(self._take_down(id))
        if not held.lock.locked():
            self._held.pop(id, None)
        return freed

    async def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> Box:
        require(self.name, self.capabilities, Capability.POOL)
        check_labels(labels)
        with told(f"box {id} cannot be handed over"):
            record, power, found = await self._look(id)
            record = await self._changes.latest(record)
            if record.labels.get(POOL) != spec.hash:
                raise BoxConflict(f"box {id} is no longer in the pool, or was created for another spec")
            record = replace(record, spec=spec, labels={**spec.labels, **labels}, created_at=created_at)
            record = await to_the_end(self._changes.write(record))
            try:
                # Its idle time begins now, and its folder is as old as it is.
                request = {"op": "touch", "paths": [workdir_of(found, spec)]}
                await self.guest(id).ask(request, seconds=_TOUCH_SECONDS)
            except GuestRefused as refused:
                raise BoxUnreachable(f"the guest of box {id} cannot be handed over: {refused}") from None
        if self._egress is not None:
            await self._egress.open(self.guest(id), record)
        return DockerBox(self, self._describe(record, power), found)

    async def set_network(self, id: str, policy: NetworkPolicy) -> None:
        require(self.name, self.capabilities, Capability.NETWORK_LIVE)
        async with self._alone(id, f"the network of box {id} cannot be changed") as (record, power, held):
            record = await self._changes.latest(record)
            record = await to_the_end(self._changes.write(replace(record, spec=replace(record.spec, network=policy))))
            if self._egress is not None and power is Power.RUNNING:
                await self._egress.open(held.guest, record)

    async def open_guest_api(self, id: str) -> None:
        if self._egress is None:
            raise Unsupported(f"boxes of provider {self.name} cannot reach Holdfast: it was opened without egress")
        async with self._alone(id, f"the guest API cannot be opened to box {id}") as (record, power, held):
            if power is not Power.RUNNING:
                raise BoxStopped(f"box {id} is not running")
            await self._egress.open_guest_api(held.guest, await self._changes.latest(record))

    def egress_environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        return {} if self._egress is None else self._egress.environment(policy)

    def traffic(self, id: str) -> tuple[int, int] | tuple[None, None]:
        if self._egress is None:
            return None, None
        traffic = self._egress.traffic(id)
        return traffic.sent, traffic.received

    # --- snapshots ---

    async def snapshot_box(self, id: str, labels: Mapping[str, str]) -> Snapshot:
        require(self.name, self.capabilities, Capability.SNAPSHOTS)
        async with self._alone(id, f"a snapshot of box {id} cannot be taken") as (record, power, _):
            return await to_the_end(self._snapshots.take(record.id, labels, running=power is Power.RUNNING))

    async def fork_box(self, id: str, new: str | None, labels: Mapping[str, str]) -> Box:
        require(self.name, self.capabilities, Capability.FORK)
        new = new or new_id("b")
        async with self._alone(id, f"box {id} cannot be forked") as (record, power, _):
            record = await self._changes.latest(record)
            self.check(record.spec, new, labels)
            image = await to_the_end(self._snapshots.fork(id, running=power is Power.RUNNING))
        try:
            with told(f"box {new} cannot be made"):
                return await self._make(record.spec, new, labels, image, None)
        except BaseException:
            await to_the_end(self._snapshots.clear_fork(str(image["Id"])))
            raise

    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        with told("snapshots cannot be listed"):
            return [each for each in await self._snapshots.all() if matches(each.labels, labels or {})]

    async def snapshot(self, id: str) -> Snapshot:
        with told(f"snapshot {id} cannot be looked at"):
            return await self._snapshots.get(id)

    async def delete_snapshot(self, id: str) -> int:
        with told(f"snapshot {id} cannot be deleted"):
            return await to_the_end(self._snapshots.delete(id))

    async def export_snapshot(self, id: str) -> AsyncIterator[bytes]:
        require(self.name, self.capabilities, Capability.EXPORT)
        with told(f"snapshot {id} cannot be exported"):
            async with contextlib.aclosing(self._snapshots.export(id)) as pieces:
                async for piece in pieces:
                    yield piece

    async def import_snapshot(self, stream: AsyncIterable[bytes]) -> Snapshot:
        require(self.name, self.capabilities, Capability.EXPORT)
        return await self._snapshots.import_(stream)

    # --- volumes ---

    async def create_volume(self, name: str) -> Volume:
        require(self.name, self.capabilities, Capability.VOLUMES)
        with told(f"volume {name} cannot be made"):
            return await volumes.create(self.engine, self.names, name)

    async def volumes(self) -> list[Volume]:
        with told("volumes cannot be listed"):
            return await volumes.all_volumes(self.engine, self.names)

    async def delete_volume(self, name: str) -> int:
        require(self.name, self.capabilities, Capability.VOLUMES)
        with told(f"volume {name} cannot be deleted"):
            return await to_the_end(volumes.delete(self.engine, self.names, await self.runtime(), name))

    # --- housekeeping ---

    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        removed: list[str] = []
        freed = 0
        with told("leftovers cannot be swept away"):
            for each in await self.engine.containers(self.names.labels(Kind.BOX)):
                labels = each.get("Labels") or {}
                id = str(labels.get(BOX))
                why = sweep.why_remove(id, str(each.get("State")), labels, keep, self._me, time.time())
                if why is None:
                    continue
                held = self.held(id)
                if held.lock.locked():
                    continue  # somebody is at it
                async with held.lock:
                    freed += await to_the_end(self._take_down(id))
                self._held.pop(id, None)
                removed.append(f"box {id}: {why}")
            more, bytes_freed = await sweep.sweep_objects(self.engine, self.names, self._me)
            removed += await runtime_module.sweep(self.engine, self._me)
        return Swept((*removed, *more), freed + bytes_freed)

    async def disk_use(self, id: str) -> int | None:
        return await containers.size_of(self.engine, self.names.box(id))

    async def usage(self, id: str) -> containers.ContainerUsage:
        with told(f"what box {id} uses cannot be told"):
            return await containers.usage_of(self.engine, self.names.box(id))

    async def diagnose(self, id: str | None = None) -> list[Step]:
        steps = [await take_step("docker daemon", self._ask_daemon, "docker info")]
        if steps[-1].ok:
            steps.append(await take_step("guest", self._find_guest, "docker info"))
        if id is not None and all(step.ok for step in steps):
            try:
                box = await self.attach(id)
                steps += await box.ping()
            except BoxError as error:
                steps.append(Step("box record", False, 0.0, error.message, error.hint or "holdfast box list --all"))
        return steps

    async def _ask_daemon(self) -> str:
        with told("the daemon cannot say what it is"):
            info = await self.engine.ask("GET", "info")
        chosen = self.oci_runtime or info.get("DefaultRuntime")
        return f"{info.get('ServerVersion')} at {self.engine.host.address}, {info.get('Driver')}, runtime {chosen}"

    async def _find_guest(self) -> str:
        return f"on volume {(await self.runtime()).volume}"


def _check_id(id: str) -> None:
    if not _ID.fullmatch(id):
        raise InvalidSpec(f"{id!r} cannot be the id of a box: lower case letters, digits and -, at most 63")


def _explained(id: str, problem: EngineProblem) -> BoxError:
    return CreateFailed(f"cannot create box {id}: Docker says: {problem.message}", hint="holdfast doctor")
