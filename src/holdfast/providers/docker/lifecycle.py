"""Creates, finds, changes and deletes boxes at a Docker daemon, and makes the handles to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.api.box.box import BoxInfo, Power, Wake
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import BoxSpec, check_labels
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    BoxUnreachable,
    CreateFailed,
    InvalidSpec,
    SnapshotNotFound,
)
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.labels import POOL, matches
from holdfast.boxes.provider import check_known_id, check_new_id, is_box_id
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.docker import containers, volumes
from holdfast.providers.docker.box import DockerBox, workdir_of
from holdfast.providers.docker.changes import Changes
from holdfast.providers.docker.engine import Engine, EngineProblem, refusals_named
from holdfast.providers.docker.images import resolve_image
from holdfast.providers.docker.objects import (
    BOX,
    KIND,
    MAKER,
    NAMESPACE,
    RECORD,
    BoxRecord,
    Kind,
    Maker,
    Names,
    latest,
)
from holdfast.providers.docker.runtime import PLACE, Runtime, RuntimeVolume
from holdfast.providers.docker.snapshots import Snapshots
from holdfast.providers.docker.transport import DockerTransport
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.stream import RUN, BoxConnection, BoxConnections, StreamEgress, StreamGuestClient

_START_SECONDS: Final = 60.0
_GRACE_MS: Final = 1500
_TOUCH_SECONDS: Final = 10.0
_CONCURRENT: Final = 8
"""Containers that are started at a time. The daemon gets no faster with more."""
_PROVIDER: Final = "docker"
CAPABILITIES: Final = frozenset(Capability) - {
    Capability.PREVIEW,
    Capability.DISK_LIMIT,
    Capability.HOST_MOUNTS,
    Capability.NETWORK_ALLOW,
    Capability.NETWORK_OPEN,
    Capability.NETWORK_LIVE,
    Capability.SECRETS,
}
"""What every daemon can do. The others depend on its storage, on where it runs, and on whether there is an egress."""


class ContainerLifecycle:
    """Owned by the provider, which opens and closes it. Closing stops no box."""

    def __init__(
        self,
        engine: Engine,
        names: Names,
        snapshots: Snapshots,
        runtime: RuntimeVolume,
        egress: StreamEgress,
        me: Maker,
        *,
        oci_runtime: str | None,
        default_image: str | None,
    ) -> None:
        self._engine = engine
        self._names = names
        self._snapshots = snapshots
        self._runtime = runtime
        self._egress = egress
        self._oci_runtime = oci_runtime
        self._default_image = default_image
        self._starts = asyncio.Semaphore(_CONCURRENT)
        self._me = me
        self._changes = Changes(engine, names)
        self._connections = BoxConnections(self._dial, self._verdict)
        self.capabilities: frozenset[Capability] = CAPABILITIES

    async def open(self, info: Mapping[str, Any]) -> None:
        """`info` is what the daemon reports about itself."""
        claimed = set(CAPABILITIES)
        if await containers.limits_disk(self._engine, self._names, info):
            claimed.add(Capability.DISK_LIMIT)
        if self._engine.host.is_local:
            claimed.add(Capability.HOST_MOUNTS)
        if self._egress.exists:
            claimed |= {Capability.NETWORK_ALLOW, Capability.NETWORK_OPEN, Capability.NETWORK_LIVE}
            claimed |= self._egress.capabilities
        self.capabilities = frozenset(claimed)

    async def close(self) -> None:
        self._egress.close_all()
        await self._connections.close()

    # --- streams ---

    def guest(self, id: str) -> StreamGuestClient:
        return self._connections[id].guest

    async def _verdict(self, id: str) -> BoxError | None:
        try:
            stopped = await self.power(id) is Power.STOPPED
        except BoxGone as gone:
            return gone
        return _stopped(id) if stopped else None

    async def _dial(self, id: str) -> DockerTransport:
        power = await self.power(id)
        if power is Power.STOPPED:
            raise _stopped(id)
        if power is Power.PAUSED:
            raise BoxStopped(f"box {id} is paused", hint=f"resume it: holdfast box start {id}")
        runtime = await self._runtime.get()
        try:
            return DockerTransport(await self._engine.execute(self._names.box(id), runtime.bridge(RUN)))
        except EngineProblem as problem:
            # It may have stopped or been deleted since its power was read.
            if await self.power(id) is Power.STOPPED:
                raise _stopped(id) from None
            raise BoxUnreachable(f"box {id} cannot be reached: Docker says: {problem.message}") from None

    # --- creating ---

    def _check(self, spec: BoxSpec, id: str, labels: Mapping[str, str]) -> None:
        """Raises an error for a box that is not possible, before anything is created."""
        require(_PROVIDER, self.capabilities, *needed(spec))
        check_new_id(id)
        check_labels(labels)
        for place in [each.path for each in spec.volumes] + [each.path for each in spec.mounts] + [spec.workdir]:
            if place == "/" or any(f"{place}/".startswith(f"{own}/") for own in containers.OWN_PLACES):
                raise InvalidSpec(f"{place} cannot be used for files of a box at Docker: it is reserved")

    async def create(self, spec: BoxSpec, id: str, labels: Mapping[str, str]) -> DockerBox:
        self._check(spec, id, labels)
        with refusals_named(f"box {id} cannot be made"):
            image = await resolve_image(self._engine, spec.image or self._default_image)
            return await self._make(spec, id, labels, image, None)

    async def restore(self, snapshot: str, spec: BoxSpec, id: str, labels: Mapping[str, str]) -> DockerBox:
        self._check(spec, id, labels)
        with refusals_named(f"box {id} cannot be made"):
            image = await self._snapshots.image(snapshot)
            return await self._make(spec, id, labels, image, snapshot)

    async def fork_box(self, id: str, new: str | None, labels: Mapping[str, str]) -> DockerBox:
        new = new or new_id("b")
        async with self._exclusive(id, f"box {id} cannot be forked") as (record, power, _):
            record = await self._changes.latest(record)
            self._check(record.spec, new, labels)
            image = await to_the_end(self._snapshots.fork(id, running=power is Power.RUNNING))
        try:
            with refusals_named(f"box {new} cannot be made"):
                return await self._make(record.spec, new, labels, image, None)
        except BaseException:
            await to_the_end(self._snapshots.clear_fork(str(image["Id"])))
            raise

    async def _make(
        self, spec: BoxSpec, id: str, labels: Mapping[str, str], image: Mapping[str, Any], snapshot: str | None
    ) -> DockerBox:
        record = BoxRecord(id, spec, {**spec.labels, **labels}, now_ms(), snapshot)
        # A snapshot or fork is of a box that had its own workdir, so there the spec counts and not the image.
        ours = ((image.get("Config") or {}).get("Labels") or {}).get(KIND) in (Kind.SNAPSHOT, Kind.FORK)
        workdir = spec.workdir if ours else workdir_of(image, spec)
        mounts = await volumes.mounts(self._engine, self._names, spec)
        connection = self._connections[id]
        if connection.lock.locked():
            raise BoxConflict(f"another process is changing box {id}")
        async with connection.lock:
            try:
                await self._make_container(record, image, mounts, workdir, connection)
            except CreateFailed as error:
                # The guest's volume was removed while no box used it: create it again, once.
                if PLACE not in error.message:
                    raise
                self._runtime.forget()
                await self._make_container(record, image, mounts, workdir, connection)
        found = {"Config": {**(image.get("Config") or {}), "WorkingDir": workdir}}
        return self._handle(record, Power.RUNNING, found)

    async def _make_container(
        self,
        record: BoxRecord,
        image: Mapping[str, Any],
        mounts: volumes.Mounts,
        workdir: str,
        connection: BoxConnection,
    ) -> None:
        await self._create_container(record, image, await self._runtime.get(), mounts, workdir)
        try:
            try:
                await self._bring_up(record, connection)
            except EngineProblem as problem:
                raise _create_failed(record.id, problem) from None
        except BaseException:
            await to_the_end(self._take_down(record.id))
            raise

    async def _create_container(
        self,
        record: BoxRecord,
        image: Mapping[str, Any],
        runtime: Runtime,
        mounts: volumes.Mounts,
        workdir: str,
    ) -> None:
        """Create the container. Leaves none if it fails or is cancelled, although the daemon continues then."""
        id = record.id
        labels = self._names.labels(Kind.BOX, **{BOX: id, RECORD: record.to_text(), MAKER: str(self._me)})

        async def create() -> None:
            parts = await volumes.make_parts(self._engine, self._names, id, mounts, self._me)
            if record.spec.disk is None:  # a volume has no limit
                parts += [volumes.tools_mount(self._names, id, image, self._me)]
            config = containers.configure(
                record, str(image["Id"]), labels, runtime, [*mounts.whole, *parts], workdir, self._oci_runtime
            )
            try:
                await self._engine.create_container(self._names.box(id), config)
            except EngineProblem as problem:
                if not problem.conflict:
                    await volumes.remove_parts(self._engine, self._names, id)
                    raise
                raise BoxConflict(f"there is a docker box {id} already") from None

        try:
            await to_the_end(create())
        except asyncio.CancelledError:
            with contextlib.suppress(EngineProblem):
                if await to_the_end(self._created_by_us(id)):
                    await to_the_end(self._take_down(id))
            raise
        except EngineProblem as problem:
            if problem.missing and record.snapshot is not None:
                raise SnapshotNotFound(f"there is no snapshot {record.snapshot}") from None
            raise _create_failed(id, problem) from None

    async def _created_by_us(self, id: str) -> bool:
        """Returns whether there is a container that this process created and never started."""
        try:
            found = await self._engine.container(self._names.box(id))
        except EngineProblem as problem:
            if problem.missing:
                return False
            raise
        labels = (found.get("Config") or {}).get("Labels") or {}
        return bool(found["State"]["Status"] == "created" and labels.get(MAKER) == str(self._me))

    async def hand_over(self, id: str, spec: BoxSpec, labels: Mapping[str, str], created_at: int) -> DockerBox:
        check_labels(labels)
        with refusals_named(f"box {id} cannot be handed over"):
            record, power, found = await self._find(id)
            record = await self._changes.latest(record)
            if record.labels.get(POOL) != spec.hash:
                raise BoxConflict(f"box {id} is no longer in the pool, or was created for another spec")
            record = replace(record, spec=spec, labels={**spec.labels, **labels}, created_at=created_at)
            record = await to_the_end(self._changes.write(record))
            try:
                # The idle time of the box starts now, and its workdir gets the same age.
                request = {"op": "touch", "paths": [workdir_of(found, spec)]}
                await self.guest(id).ask(request, seconds=_TOUCH_SECONDS)
            except GuestRefused as refused:
                raise BoxUnreachable(f"the guest of box {id} cannot be handed over: {refused}") from None
        await self._egress.open(self.guest(id), record.spec.network, record.labels)
        return self._handle(record, power, found)

    # --- finding ---

    def _handle(self, record: BoxRecord, power: Power, found: Mapping[str, Any], wake: Wake | None = None) -> DockerBox:
        return DockerBox(_describe(record, power), self, self.guest(record.id), self._egress, found, wake)

    async def _find(self, id: str) -> tuple[BoxRecord, Power, dict[str, Any]]:
        """Returns a box that is completely created, as it was when created. Raises `BoxNotFound`."""
        check_known_id(id, _PROVIDER)
        missing = f"there is no docker box {id}"
        try:
            found = await self._engine.container(self._names.box(id))
        except EngineProblem as problem:
            if problem.missing:
                raise BoxNotFound(missing) from None
            raise
        state = str(found["State"]["Status"])
        if (connection := self._connections.get(id)) is not None:
            connection.guest.set_paused(state == "paused")  # so that requests to it fail at once
        labels = (found.get("Config") or {}).get("Labels") or {}
        record = BoxRecord.from_text(labels.get(RECORD, ""))
        power = containers.power_of(state)
        if (
            record is None
            or labels.get(NAMESPACE) != self._names.namespace
            or labels.get(KIND) != Kind.BOX
            or power is None
        ):
            raise BoxNotFound(missing)
        return record, power, found

    async def all(self, labels: Mapping[str, str]) -> list[BoxInfo]:
        """Returns all boxes with these labels, oldest first."""
        with refusals_named("boxes cannot be listed"):
            found, changes = await asyncio.gather(
                self._engine.containers(self._names.labels(Kind.BOX)), self._changes.all()
            )
        infos = []
        for each in found:
            record = BoxRecord.from_text((each.get("Labels") or {}).get(RECORD, ""))
            power = containers.power_of(str(each.get("State")))
            if record is None or power is None:
                continue
            record = latest(record, changes)
            if matches(record.labels, labels):
                infos.append(_describe(record, power))
        return sorted(infos, key=lambda info: (info.created_at, info.id))

    async def attach(self, id: str, wake: Wake | None = None) -> DockerBox:
        with refusals_named(f"box {id} cannot be inspected"):
            record, power, found = await self._find(id)
            record = await self._changes.latest(record)
        guest = self.guest(id)
        guest.set_paused(power is Power.PAUSED)
        if power is Power.RUNNING and not self._egress.serves(id):
            await self._egress.open(guest, record.spec.network, record.labels)
        return self._handle(record, power, found, wake)

    async def check_exists(self, id: str) -> None:
        """Raises `BoxNotFound`, `BoxUnreachable` or `EngineProblem`."""
        await self._find(id)

    async def power(self, id: str) -> Power:
        with refusals_named(f"box {id} cannot be inspected"):
            try:
                return (await self._find(id))[1]
            except BoxNotFound:
                raise BoxGone(f"box {id} is gone") from None

    async def disk_use(self, id: str) -> int:
        return await containers.size_of(self._engine, self._names.box(id))

    async def usage(self, id: str) -> containers.ContainerUsage:
        with refusals_named(f"the usage of box {id} cannot be read"):
            return await containers.usage_of(self._engine, self._names.box(id))

    # --- changing ---

    @contextlib.asynccontextmanager
    async def _exclusive(self, id: str, what: str) -> AsyncIterator[tuple[BoxRecord, Power, BoxConnection]]:
        """Lock a box within this process. The daemon rejects conflicting operations of other processes.

        `what` is the start of the message if the daemon refuses. Raises `BoxGone`.
        """
        connection = self._connections[id]
        with refusals_named(what):
            async with connection.lock:
                try:
                    record, power, _ = await self._find(id)
                except BoxNotFound:
                    self._connections.forget(id)
                    raise BoxGone(f"box {id} is gone") from None
                try:
                    yield record, power, connection
                except EngineProblem as problem:
                    if problem.missing:
                        raise BoxGone(f"box {id} is gone") from None
                    if problem.conflict:
                        raise BoxConflict(f"{what}: {problem.message}") from None
                    raise

    async def _command(self, id: str, command: str, **params: Any) -> None:
        """Send a command about a container to the daemon."""
        await self._engine.ask("POST", f"containers/{self._names.box(id)}/{command}", params=params or None)

    async def stop_box(self, id: str) -> None:
        async with self._exclusive(id, f"box {id} cannot be stopped") as (_, power, connection):
            if power is not Power.STOPPED:
                await to_the_end(self._stop(id, power, connection))

    async def _stop(self, id: str, power: Power, connection: BoxConnection) -> None:
        if power is Power.PAUSED:
            await self._command(id, "unpause")
            connection.guest.set_paused(False)
        async with connection.guest.stopping(_GRACE_MS):
            self._egress.close(id)
            await self._command(id, "stop", t=0)
            await connection.guest.close()

    async def start_box(self, id: str) -> None:
        async with self._exclusive(id, f"box {id} cannot be started") as (record, power, connection):
            if power is Power.PAUSED:
                await self._command(id, "unpause")
                connection.guest.set_paused(False)
            elif power is Power.STOPPED:
                await to_the_end(self._start(record, connection))

    async def _start(self, record: BoxRecord, connection: BoxConnection) -> None:
        try:
            await self._bring_up(await self._changes.latest(record), connection)
        except BaseException:
            with contextlib.suppress(EngineProblem):
                await self._command(record.id, "stop", t=0)
            raise

    async def _bring_up(self, record: BoxRecord, connection: BoxConnection) -> None:
        """Start the container and wait until its guest answers."""
        id, name = record.id, self._names.box(record.id)
        guest = connection.guest
        await guest.close()
        guest.set_paused(False)
        async with self._starts, volumes.verified_parts(self._engine, self._names, self._runtime.get, record):
            transport = DockerTransport(await self._engine.attach(name))
            connection.first = transport
            try:
                await self._engine.ask("POST", f"containers/{name}/start", seconds=_START_SECONDS)
                await self._egress.open(guest, record.spec.network, record.labels)
                await guest.ask({"op": "ping"}, seconds=_START_SECONDS)
            except (BoxStopped, BoxUnreachable) as error:
                raise CreateFailed(f"box {id} did not start: {transport.last_words or error.message}") from None
            finally:
                if connection.first is not None:
                    connection.first = None
                    await transport.close()

    async def pause_box(self, id: str) -> None:
        async with self._exclusive(id, f"box {id} cannot be paused") as (_, power, connection):
            if power is Power.STOPPED:
                raise _stopped(id)
            if power is Power.RUNNING:
                connection.guest.set_paused(True)
                try:
                    await self._command(id, "pause")
                except BaseException:
                    connection.guest.set_paused(False)
                    raise

    async def snapshot_box(self, id: str, labels: Mapping[str, str]) -> Snapshot:
        async with self._exclusive(id, f"a snapshot of box {id} cannot be taken") as (record, power, _):
            return await to_the_end(self._snapshots.take(record.id, labels, running=power is Power.RUNNING))

    async def set_network(self, id: str, policy: NetworkPolicy) -> None:
        require(_PROVIDER, self.capabilities, Capability.NETWORK_LIVE)
        async with self._exclusive(id, f"the network of box {id} cannot be changed") as (record, power, connection):
            record = await self._changes.latest(record)
            record = await to_the_end(self._changes.write(replace(record, spec=replace(record.spec, network=policy))))
            if power is Power.RUNNING:
                await self._egress.open(connection.guest, record.spec.network, record.labels)

    async def open_guest_api(self, id: str) -> str:
        async with self._exclusive(id, f"the guest API cannot be opened to box {id}") as (record, power, connection):
            if power is not Power.RUNNING:
                raise BoxStopped(f"box {id} is not running")
            record = await self._changes.latest(record)
            return await self._egress.open_guest_api(connection.guest, record.spec.network, record.labels)

    # --- deleting ---

    async def remove(self, id: str) -> int:
        if not is_box_id(id):
            return 0
        connection = self._connections[id]
        with refusals_named(f"box {id} cannot be removed"):
            async with connection.lock:
                freed = await to_the_end(self._take_down(id))
        if not connection.lock.locked():
            self._connections.forget(id)
        return freed

    async def remove_unused(self, id: str) -> int | None:
        """Delete a box, unless this process is changing it: then returns None. Returns the bytes freed."""
        connection = self._connections[id]
        if connection.lock.locked():
            return None
        async with connection.lock:
            freed = await to_the_end(self._take_down(id))
        self._connections.forget(id)
        return freed

    async def _take_down(self, id: str) -> int:
        """Delete a container and everything that belongs to it. Returns the bytes freed."""
        name = self._names.box(id)
        connection = self._connections.get(id)
        self._egress.close(id)
        freed, image = 0, None
        with contextlib.suppress(EngineProblem):
            found = await self._engine.container(name, size=True)
            freed, image = int(found.get("SizeRw") or 0), str(found["Image"])
            if found["State"]["Status"] == "paused":
                await self._command(id, "unpause")
        if not await self._engine.remove_container(name):
            freed = 0
        if connection is not None:
            await connection.guest.close()
        await volumes.remove_parts(self._engine, self._names, id)
        await self._changes.forget(id)
        if image is not None:
            await self._snapshots.clear_fork(image)
        return freed


def _describe(record: BoxRecord, power: Power) -> BoxInfo:
    return BoxInfo(record.id, _PROVIDER, record.spec, record.labels, power, record.created_at, record.snapshot)


def _stopped(id: str) -> BoxStopped:
    return BoxStopped(f"box {id} is stopped", hint=f"holdfast box start {id}")


def _create_failed(id: str, problem: EngineProblem) -> BoxError:
    return CreateFailed(f"cannot create box {id}: Docker says: {problem.message}", hint="holdfast doctor")
