"""Boxes that are sandboxes at Modal.

Modal has no stop and start. A box that is stopped is an image, made by `snapshot_filesystem`, and starting it makes a
new sandbox from that image: which sandbox or image a box is now is in its record (`records`). Sandboxes have names and
tags, so that they are found again even where a record was lost. The guest is reached over the stream of one command,
which also carries the egress, so a box reaches a server that has no address of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import modal
from modal import exception

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
    CreateFailed,
    InvalidSpec,
    SnapshotNotFound,
    Unsupported,
)
from holdfast.api.guest_url import GuestUrl
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.images import declared_packages
from holdfast.boxes.labels import POOL, matches
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider, Swept, check_new_id, is_box_id
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.diagnosis import diagnose_box
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.modal import guest as guest_module
from holdfast.providers.modal import network
from holdfast.providers.modal.account import Account, Credentials, as_any, finished, limited, told, translated
from holdfast.providers.modal.account_checks import check_access, diagnose_account
from holdfast.providers.modal.box import ModalBox
from holdfast.providers.modal.lifetime import keep_saving, save_is_due
from holdfast.providers.modal.records import SNAPSHOT_KIND, BoxRecord, Records, State
from holdfast.providers.modal.sandboxes import Sandboxes
from holdfast.providers.modal.transport import ModalTransport
from holdfast.providers.modal.volumes import Volumes
from holdfast.providers.snapshot_images import SnapshotImages
from holdfast.providers.snapshot_records import SnapshotRecord
from holdfast.providers.stream import StreamEgress, StreamGuestClient
from holdfast.providers.stream.guest_relay import own_policy

log = logging.getLogger(__name__)

_START_SECONDS: Final = 60.0
_TOUCH_SECONDS: Final = 10.0
_GRACE_MS: Final = 1500
_RESERVED: Final = (guest_module.PLACE, "/proc", "/sys", "/dev", "/__modal")
CAPABILITIES: Final = frozenset(Capability) - {
    Capability.DISK_LIMIT,
    Capability.EXPORT,
    Capability.HOST_MOUNTS,
    Capability.PAUSE,
    Capability.PIDS_LIMIT,
    Capability.PREVIEW,
    Capability.SECRETS,
}
"""Previews need ports that are named in advance."""


@dataclass(slots=True)
class _Held:
    """What this process holds for one box."""

    guest: StreamGuestClient
    sandbox: modal.Sandbox | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


class ModalProvider(Provider):
    """Boxes in one app of one account. `folder` has their records, and tells them from those of other homes."""

    name = "modal"
    snapshot_kind = SNAPSHOT_KIND
    isolation = "a sandbox at Modal (gVisor)"
    capabilities: frozenset[Capability] = CAPABILITIES

    def __init__(
        self,
        folder: Path,
        credentials: Credentials,
        *,
        app: str = "holdfast",
        environment: str | None = None,
        image: str | None = None,
        ports: Sequence[int] = (),
        direct: bool = False,
        relay: GuestUrl | None = None,
        egress: Egress | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        """`image` is for boxes that name none; without it, it is Modal's own Debian. `ports` get an encrypted tunnel
        each, for previews. With `direct`, or without an `egress`, Modal keeps the network policy of boxes.
        """
        self._account = Account(credentials, app, environment)
        self._records = Records(folder)
        self.images: SnapshotImages = SnapshotImages(self.name, folder / "images", self._records.snapshots)
        self._image = image
        self._ports = tuple(ports)
        self._direct = direct or egress is None
        self._relay = relay
        self._egress = StreamEgress(egress, direct=self._direct, relay=relay)
        self._held: dict[str, _Held] = {}
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._volumes: Volumes
        self._sandboxes: Sandboxes
        self.capabilities = CAPABILITIES | self._egress.capabilities | ({Capability.PREVIEW} if ports else set())

    async def open(self) -> None:
        """Asks Modal for nothing yet: a server starts, and its other boxes work, while Modal is out of reach."""
        namespace = await asyncio.to_thread(self._records.prepare)
        self.images.prepare()
        self._volumes = Volumes(self._account, self._records, namespace)
        self._sandboxes = Sandboxes(self._account, namespace, self._image, self._ports)
        self._tasks.append(asyncio.create_task(keep_saving(self.save_due), name="saving boxes at Modal"))
        if self._egress.exists:
            self._tasks.append(asyncio.create_task(self._resume()))

    async def _resume(self) -> None:
        """Serve the egress of boxes that kept running while there was no server."""
        for record in self._records.boxes():
            if record.state is State.RUNNING and record.spec.network.mode is not Network.NONE:
                try:
                    await self.attach(record.id)
                except BoxError as error:
                    log.warning("cannot restore the egress of box %s: %s", record.id, error)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._egress.close_all()
        held, self._held = self._held, {}
        try:
            await asyncio.gather(*(each.guest.close() for each in held.values()), return_exceptions=True)
            for each in held.values():
                await self._detach(each)
        finally:
            await self._account.close()

    async def _detach(self, held: _Held) -> None:
        sandbox, held.sandbox = held.sandbox, None
        if sandbox is not None:
            await self._sandboxes.detach(sandbox)

    # --- the way to a box ---

    def held(self, id: str) -> _Held:
        if id not in self._held:
            self._held[id] = _Held(StreamGuestClient(id, lambda: self._dial(id), lambda: self._verdict(id)))
        return self._held[id]

    def guest(self, id: str) -> StreamGuestClient:
        return self.held(id).guest

    async def _sandbox(self, record: BoxRecord) -> modal.Sandbox:
        """Returns the sandbox of a running box. Raises errors of the SDK."""
        assert record.sandbox is not None
        held = self.held(record.id)
        async with held.opening:
            if held.sandbox is None or held.sandbox.object_id != record.sandbox:
                await self._detach(held)
                held.sandbox = await self._sandboxes.get(record.sandbox)
            return held.sandbox

    async def _has_ended(self, record: BoxRecord) -> bool:
        """Returns whether the sandbox of a running box has ended. Raises `BoxUnreachable` if Modal does not tell."""
        with told(f"box {record.id} cannot be looked at"):
            try:
                return await limited((await self._sandbox(record)).poll.aio()) is not None
            except exception.NotFoundError:
                return True

    async def _verdict(self, id: str) -> BoxError | None:
        """Returns what became of a box whose stream was lost, or None if it runs."""
        try:
            return _stopped(id) if await self.power(id) is Power.STOPPED else None
        except BoxGone as gone:
            return gone

    async def _dial(self, id: str) -> ModalTransport:
        record = self._whole(id)
        if record.state is State.STOPPED:
            raise _stopped(id)
        with told(f"box {id} cannot be reached"):
            try:
                return await guest_module.dial(await self._sandbox(record), record.python)
            except (exception.NotFoundError, exception.ConflictError):
                if await self._has_ended(record):
                    if await self._outlived(id) is not None:
                        raise _stopped(id) from None
                    raise BoxGone(f"box {id} is gone: its sandbox has ended at Modal") from None
                raise

    # --- creating ---

    def check(self, spec: BoxSpec, id: str, labels: Mapping[str, str]) -> None:
        """Refuse what cannot be, before anything is created."""
        require(self.name, self.capabilities, *needed(spec))
        check_new_id(id)
        check_labels(labels)
        for place in [each.path for each in spec.volumes] + [spec.workdir]:
            if place == "/" or any(f"{place}/".startswith(f"{own}/") for own in _RESERVED):
                raise InvalidSpec(f"{place} cannot be used for files of a box at Modal: it is reserved")
        if spec.image is not None:
            declared_packages(spec.image)  # says what is wrong with them
        self._network(spec.network)

    def _network(self, policy: NetworkPolicy) -> dict[str, Any]:
        if not self._direct and self._relay is None:
            return network.closed(self._ports)
        return dict(network.direct(own_policy(policy, direct=self._direct, relay=self._relay)))

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        self.check(spec, id, labels or {})
        own = spec.image if spec.image is not None and declared_packages(spec.image) is None else None
        base = None if own is None else self.images.reference(own)
        whole = {**spec.labels, **(labels or {})}
        return await self._create(BoxRecord(id, spec, whole, now_ms(), State.CREATING, base=base))

    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        require(self.name, self.capabilities, Capability.SNAPSHOTS)
        self.check(spec, id, labels or {})
        found = self._records.snapshots.get(snapshot)
        record = BoxRecord(
            id,
            spec,
            {**spec.labels, **(labels or {})},
            now_ms(),
            State.CREATING,
            found.id,
            base=found.reference,
            parent=found.id,
            size=found.total,
        )
        return await self._create(record)

    async def _create(self, record: BoxRecord) -> Box:
        made: list[Box] = []

        async def create() -> None:
            made.append(await self._create_alone(record))

        try:
            await to_the_end(create())
        except asyncio.CancelledError:
            if made:
                await to_the_end(self.remove(record.id))
            raise
        return made[0]

    async def _create_alone(self, record: BoxRecord) -> Box:
        id = record.id
        async with self._records.locks.lock(id):
            if self._records.box(id) is not None:
                raise BoxConflict(f"there is a modal box {id} already")
            self._records.write_box(record)
            try:
                if record.snapshot is not None:
                    self._records.snapshots.get(record.snapshot)  # from here on, the record keeps its image
                with told(f"box {id} cannot be created"):
                    record = await self._bring_up(record)
            except BaseException:
                await self._give_up(record)
                raise
        return self._box(record, Power.RUNNING)

    async def _bring_up(self, record: BoxRecord) -> BoxRecord:
        """Make a sandbox for a box, with its guest. Leaves no sandbox behind if that fails."""
        held = self.held(record.id)
        await held.guest.close()
        await self._detach(held)
        nonce = secrets.token_hex(8)
        mounts = await self._volumes.mounts(record.spec)
        try:
            sandbox = await self._sandboxes.create(record, nonce, mounts, self._network(record.spec.network))
        except exception.NotFoundError as error:
            if record.snapshot is not None and record.state is State.CREATING:
                raise SnapshotNotFound(f"there is no snapshot {record.snapshot}: Modal says: {error}") from None
            raise
        try:
            held.sandbox = sandbox
            record = replace(record, sandbox=sandbox.object_id)
            if record.state is State.CREATING:
                self._records.write_box(record)
            ready = await guest_module.set_up(sandbox, record.id, nonce)
            record = replace(record, state=State.RUNNING, python=ready.python, environment=ready.environment)
            record = replace(record, started_at=self._clock(), kept=None, kept_at=0)
            # The stream is opened by what the record says. A box that is being started stays stopped if this fails.
            before = self._records.box(record.id)
            self._records.write_box(record)
            try:
                await self._greet(record, held)
            except BaseException:
                if before is not None:
                    self._records.write_box(before)
                raise
        except BaseException:
            held.sandbox = None
            await held.guest.close()
            await self._sandboxes.try_to_end(sandbox)
            raise
        return record

    async def _greet(self, record: BoxRecord, held: _Held) -> None:
        try:
            await held.guest.ask({"op": "ping", "workdir": record.spec.workdir}, seconds=_START_SECONDS)
        except (BoxStopped, BoxGone, BoxUnreachable, GuestRefused) as error:
            raise CreateFailed(f"box {record.id} did not start: {error}") from None
        await self._open_egress(held.guest, record)

    async def _open_egress(self, guest: StreamGuestClient, record: BoxRecord) -> None:
        await self._egress.open(guest, record.spec.network, record.labels)

    async def _give_up(self, record: BoxRecord) -> None:
        """Drop a box that was not created. Modal may have made its sandbox all the same, and the answer was lost."""
        try:
            if self._account.has_connected:
                await self._end_sandbox(replace(record, sandbox=None))
        except (exception.Error, OSError, BoxError) as error:
            log.warning("what was created of box %s is left to the next sweep: %s", record.id, error)
            return
        await self._forget(record)

    async def _forget(self, record: BoxRecord) -> None:
        """Drop what was created of a box whose sandbox is gone or never was."""
        self._records.remove_box(record.id)
        self._held.pop(record.id, None)
        for image in {record.image, record.base, record.kept} - {None}:
            await self._release(str(image))

    async def _release(self, image: str) -> None:
        """Delete an image that nothing needs any more."""
        if self._records.is_used(image):
            return
        try:
            await self._sandboxes.delete_image(image)
        except (exception.Error, OSError, BoxError) as error:
            log.warning("image %s was not deleted at Modal: %s", image, error)

    async def _take_down(self, record: BoxRecord) -> int:
        """Remove a box and all that is its own. Returns the bytes freed."""
        freed = record.size
        held = self.held(record.id)
        self._egress.close(record.id)
        if record.state is State.RUNNING:
            with contextlib.suppress(BoxError):
                freed = await self._measure(record)
        await held.guest.close()
        if record.state is not State.STOPPED:
            with told(f"box {record.id} cannot be removed"):
                await self._end_sandbox(record)
        await self._forget(record)
        return freed

    async def _end_sandbox(self, record: BoxRecord) -> None:
        """End the sandbox of a box, even one that was created and never got into the record."""
        held = self.held(record.id)
        try:
            sandbox = await (self._sandboxes.of_box(record.id) if record.sandbox is None else self._sandbox(record))
        except exception.NotFoundError:
            return
        await self._sandboxes.end(sandbox)
        await self._detach(held)

    # --- finding ---

    def _describe(self, record: BoxRecord, power: Power) -> BoxInfo:
        return BoxInfo(record.id, self.name, record.spec, record.labels, power, record.created_at, record.snapshot)

    def _whole(self, id: str) -> BoxRecord:
        """Returns the record of a box that was created. Raises `BoxGone`."""
        record = self._records.box(id)
        if record is None or record.state is State.CREATING:
            raise BoxGone(f"box {id} is gone")
        return record

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        records = [
            each
            for each in await asyncio.to_thread(self._records.boxes)
            if each.state is not State.CREATING and matches(each.labels, labels or {})
        ]
        running = await self._listed() if any(each.state is State.RUNNING for each in records) else set()
        infos = []
        for record in records:
            if record.state is State.STOPPED:
                infos.append(self._describe(record, Power.STOPPED))
            # A list may be out of date. What it lacks is looked at before it is taken for gone.
            elif record.sandbox in running or not await self._has_ended(record):
                infos.append(self._describe(record, Power.RUNNING))
            elif (left := await self._outlived(record.id)) is not None:
                infos.append(self._describe(left, Power.STOPPED))
        return sorted(infos, key=lambda info: (info.created_at, info.id))

    async def _listed(self) -> set[str]:
        with told("boxes cannot be listed"):
            return await self._sandboxes.listed()

    def _box(self, record: BoxRecord, power: Power, wake: Wake | None = None) -> Box:
        info, guest = self._describe(record, power), self.guest(record.id)
        return ModalBox(info, self, guest, self._egress, wake, environment=record.environment)

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        record = self._records.box(id)
        if record is None or record.state is State.CREATING:
            raise BoxNotFound(f"there is no modal box {id}")
        power = Power.STOPPED
        if record.state is State.RUNNING:
            if not await self._is_gone(record):
                power = Power.RUNNING
                if not self._egress.serves(id):
                    await self._open_egress(self.guest(id), record)
            elif (left := await self._outlived(id)) is not None:
                record = left
            else:
                raise BoxGone(f"box {id} is gone: its sandbox has ended at Modal")
        return self._box(record, power, wake)

    async def _is_gone(self, record: BoxRecord) -> bool:
        """Returns whether the sandbox has ended. A box whose stream is open can be used while Modal does not tell."""
        try:
            return await self._has_ended(record)
        except BoxUnreachable:
            if not self.guest(record.id).alive:
                raise
            return False

    async def probe(self, id: str) -> Liveness:
        try:
            await self.power(id)
        except BoxGone:
            return Liveness.GONE
        except BoxError:
            return Liveness.UNKNOWN
        return Liveness.LIVE

    async def power(self, id: str) -> Power:
        record = self._whole(id)
        if record.state is State.STOPPED:
            return Power.STOPPED
        if await self._has_ended(record):
            if await self._outlived(id) is not None:
                return Power.STOPPED
            raise BoxGone(f"box {id} is gone: its sandbox has ended at Modal")
        return Power.RUNNING

    # --- life ---

    @contextlib.asynccontextmanager
    async def _alone(self, id: str) -> AsyncIterator[BoxRecord]:
        """Keep others away from a box while it is changed."""
        if not is_box_id(id):
            raise BoxGone(f"box {id} is gone")
        async with self._records.locks.lock(id):
            record = self._whole(id)
            if record.state is State.RUNNING and record.kept is not None and await self._has_ended(record):
                record = await self._stopped_as_kept(record)
            yield record

    # A box outlives its sandbox, which Modal ends after a day: see `lifetime`.

    async def save_due(self) -> None:
        """Save the files of boxes whose sandboxes are about to end."""
        for each in await asyncio.to_thread(self._records.boxes):
            if save_is_due(each, self._clock()):
                try:
                    async with self._alone(each.id) as record:
                        if save_is_due(record, self._clock()):
                            await to_the_end(self._keep(record))
                except BoxError as error:
                    log.warning("box %s is saved later, before its sandbox ends: %s", each.id, error)

    async def _keep(self, record: BoxRecord) -> None:
        at = self._clock()
        self._records.write_box(replace(record, kept=await self._save(record), kept_at=at))
        if record.kept is not None:
            await self._release(record.kept)

    async def _outlived(self, id: str) -> BoxRecord | None:
        """Returns the record of a box that has its files, although its sandbox has ended. None if they are lost."""
        if (known := self._records.box(id)) is not None and known.state is State.RUNNING and known.kept is None:
            return None
        if self._records.locks.is_locked(id):  # perhaps by what is asking, so this does not wait
            raise BoxUnreachable(f"the sandbox of box {id} has ended, and the box is being changed")
        async with self._alone(id) as record:
            return record if record.state is State.STOPPED else None

    async def _stopped_as_kept(self, record: BoxRecord) -> BoxRecord:
        held, kept = self.held(record.id), record.kept
        log.warning("the sandbox of box %s has ended at Modal: it is stopped, with its files as last saved", record.id)
        self._egress.close(record.id)
        ended = replace(record, state=State.STOPPED, image=kept, kept=None, kept_at=0, base=None, sandbox=None)
        self._records.write_box(ended)
        await self._detach(held)  # the guest's stream is dead, and may be what is asking: the next start closes it
        if record.base is not None:
            await self._release(record.base)
        return ended

    async def stop_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.STOP)
        async with self._alone(id) as record:
            if record.state is State.RUNNING:
                await to_the_end(self._stop(record))

    async def _stop(self, record: BoxRecord) -> None:
        await self._refuse_ended(record)
        held = self.held(record.id)
        size = await self._measure(record)
        async with held.guest.stopping(_GRACE_MS):
            image = await self._save(record)  # if this fails, the sandbox runs on, and its files are not lost
            self._egress.close(record.id)
            ended = replace(
                record, state=State.STOPPED, image=image, base=None, sandbox=None, size=size, kept=None, kept_at=0
            )
            sandbox = await self._sandbox(record)
            self._records.write_box(ended)
            held.sandbox = None
            await held.guest.close()
        await self._sandboxes.try_to_end(sandbox)
        for old in {record.base, record.image, record.kept} - {None}:
            await self._release(str(old))

    async def _refuse_ended(self, record: BoxRecord) -> None:
        if await self._has_ended(record):
            raise BoxConflict(
                f"the sandbox of box {record.id} has already finished at Modal, and its files with it",
                hint=f"delete the box, or restore its latest snapshot: holdfast box delete {record.id}",
            )

    async def _save(self, record: BoxRecord) -> str:
        """Save the files of a running box as an image. Returns its id. Raises `BoxUnreachable` or `BoxConflict`."""
        try:
            return await self._sandboxes.save(await self._sandbox(record))
        except (exception.Error, OSError) as error:
            if finished(error):
                await self._refuse_ended(record)
            problem = translated(error, f"the files of box {record.id} cannot be saved")
            raise BoxUnreachable(problem.message, hint="the box runs on, and nothing is lost: try again") from error

    async def start_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.STOP)
        async with self._alone(id) as record:
            if record.state is State.STOPPED:
                with told(f"box {id} cannot be started"):
                    await to_the_end(self._start(record))

    async def _start(self, record: BoxRecord) -> None:
        started = await self._bring_up(record)
        self._records.write_box(replace(started, base=record.image, image=None))

    async def pause_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.PAUSE)

    async def remove(self, id: str) -> int:
        if not is_box_id(id):
            return 0
        async with self._records.locks.lock(id):
            record = self._records.box(id)
            if record is None:
                self._held.pop(id, None)
                return 0
            return await to_the_end(self._take_down(record))

    async def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> Box:
        require(self.name, self.capabilities, Capability.POOL)
        check_labels(labels)
        async with self._alone(id) as record:
            if record.labels.get(POOL) != spec.hash:
                raise BoxConflict(f"box {id} is no longer in the pool, or was created for another spec")
            record = replace(record, spec=spec, labels={**spec.labels, **labels}, created_at=created_at)
            self._records.write_box(record)
            if record.state is State.STOPPED:
                raise _stopped(id)
            guest = self.guest(id)
            try:
                # Its idle time begins now, and its folder is as old as the box.
                await guest.ask({"op": "touch", "paths": [spec.workdir]}, seconds=_TOUCH_SECONDS)
            except GuestRefused as refused:
                raise BoxUnreachable(f"the guest of box {id} cannot be handed over: {refused}") from None
            with told(f"box {id} cannot be handed over"):
                await self._sandboxes.retag(await self._sandbox(record), record)
            await self._apply_network(record)
        return self._box(record, Power.RUNNING)

    # --- the network ---

    async def set_network(self, id: str, policy: NetworkPolicy) -> None:
        require(self.name, self.capabilities, Capability.NETWORK_LIVE)
        self._network(policy)
        async with self._alone(id) as record:
            record = self._records.write_box(replace(record, spec=replace(record.spec, network=policy)))
            if record.state is State.RUNNING:
                await self._apply_network(record)

    async def _apply_network(self, record: BoxRecord) -> None:
        if not self._direct:
            await self._open_egress(self.guest(record.id), record)
        else:
            await self._set_own_network(record)

    async def _set_own_network(self, record: BoxRecord) -> None:
        with told(f"the network of box {record.id} cannot be changed"):
            sandbox = await self._sandbox(record)
            arguments = self._network(record.spec.network)
            await limited(sandbox._experimental_set_outbound_network_policy.aio(**as_any(arguments)))

    async def open_guest_api(self, id: str) -> str:
        async with self._alone(id) as record:
            if record.state is not State.RUNNING:
                raise _stopped(id)
            if self._relay is not None:  # the sandbox may be older than the setting
                await self._set_own_network(record)
            return await self._egress.open_guest_api(self.guest(id), record.spec.network, record.labels)

    async def tunnel_url(self, id: str, port: int) -> str:
        require(self.name, self.capabilities, Capability.PREVIEW)
        if port not in self._ports:
            raise Unsupported(
                f"port {port} of box {id} has no tunnel at Modal: {', '.join(map(str, self._ports))} have one",
                hint="name it with holdfast up --modal-ports, or ask the server: holdfast box port",
            )
        record = self._whole(id)
        if record.state is State.STOPPED:
            raise _stopped(id)
        with told(f"port {port} of box {id} has no tunnel"):
            tunnels = await limited((await self._sandbox(record)).tunnels.aio())
        if port not in tunnels:
            raise BoxConflict(
                f"box {id} was created before port {port} got a tunnel",
                hint=f"stop and start it: holdfast box stop {id}",
            )
        return str(tunnels[port].url)

    # --- snapshots ---

    async def snapshot_box(self, id: str, labels: Mapping[str, str]) -> Snapshot:
        require(self.name, self.capabilities, Capability.SNAPSHOTS)
        async with self._alone(id) as record:
            return await to_the_end(self._take_snapshot(record, labels))

    async def _take_snapshot(self, record: BoxRecord, labels: Mapping[str, str]) -> Snapshot:
        size, image = record.size, record.image
        if record.state is State.RUNNING:
            await self._refuse_ended(record)
            size = await self._measure(record)
            image = await self._save(record)
        assert image is not None
        parent = None if record.parent is None else self._records.snapshots.find(record.parent)
        made = SnapshotRecord(
            new_id("s"),
            image,
            record.id,
            record.parent,
            max(0, size - (0 if parent is None else parent.total)),
            size,
            now_ms(),
            dict(labels),
        )
        self._records.snapshots.write(made)
        self._records.write_box(replace(record, parent=made.id, size=size))
        return made.describe(self.name, self.snapshot_kind)

    async def fork_box(self, id: str, new: str | None, labels: Mapping[str, str]) -> Box:
        require(self.name, self.capabilities, Capability.FORK)
        new = new or new_id("b")
        async with self._alone(id) as record:
            self.check(record.spec, new, labels)
            if record.state is State.RUNNING:
                await self._refuse_ended(record)
            image = record.image or await to_the_end(self._save(record))
            fork = BoxRecord(
                new,
                record.spec,
                {**record.spec.labels, **labels},
                now_ms(),
                State.CREATING,
                base=image,
                size=record.size,
            )
            return await self._create(fork)

    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        found = await asyncio.to_thread(self._records.snapshots.all)
        return [each.describe(self.name, self.snapshot_kind) for each in found if matches(each.labels, labels or {})]

    async def snapshot(self, id: str) -> Snapshot:
        return self._records.snapshots.get(id).describe(self.name, self.snapshot_kind)

    async def delete_snapshot(self, id: str) -> int:
        found = self._records.snapshots.get(id)
        self.images.check_unused(id)
        self._records.snapshots.remove(id)
        await to_the_end(self._release(found.reference))
        return found.size

    # --- volumes ---

    async def create_volume(self, name: str) -> Volume:
        with told(f"volume {name} cannot be created"):
            return await self._volumes.create(name)

    async def volumes(self) -> list[Volume]:
        with told("volumes cannot be listed"):
            return await self._volumes.list()

    async def delete_volume(self, name: str) -> int:
        with told(f"volume {name} cannot be deleted"):
            return await self._volumes.delete(name)

    # --- housekeeping ---

    async def disk_use(self, id: str) -> int | None:
        return await self._measure(self._whole(id))

    async def _measure(self, record: BoxRecord) -> int:
        return await guest_module.measure(self.guest(record.id), record)

    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        removed: list[str] = []
        freed = 0
        for record in self._records.boxes():
            if record.state is State.CREATING:
                why = "its creation was interrupted"
            elif keep is not None and record.id not in keep:
                why = "it is not known"
            else:
                continue
            if self._records.locks.is_locked(record.id):
                continue  # somebody is at it
            freed += await self.remove(record.id)
            removed.append(f"box {record.id}: {why}")
        removed += await self._sweep_sandboxes()
        return Swept(tuple(removed), freed)

    async def _sweep_sandboxes(self) -> list[str]:
        """End sandboxes of this home that no record names."""
        listed = await self._listed()
        known = {each.sandbox for each in self._records.boxes()}
        removed = []
        for id in sorted(listed - known):
            with told(f"sandbox {id} cannot be looked at"):
                if (box := await self._sandboxes.end_unknown(id, self._records)) is not None:
                    removed.append(f"sandbox {id}: box {box} does not need it")
        return removed

    async def diagnose(self, id: str | None = None) -> list[Step]:
        steps = await diagnose_account(self._account)
        if id is not None and all(step.ok for step in steps):
            steps += await diagnose_box(self, id)
        return steps

    async def check_access(self) -> list[Step]:
        return await check_access(self.name, self._account)


def _stopped(id: str) -> BoxStopped:
    return BoxStopped(f"box {id} is stopped", hint=f"holdfast box start {id}")
