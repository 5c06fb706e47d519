"""Boxes that are sandboxes at Daytona. The labels of a sandbox say which box it is; our guest in it does the work.

The Daytona API creates, finds, stops, snapshots and deletes sandboxes. Everything else goes over one stream to the
guest, so that a box in a cloud reaches a server behind NAT.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from daytona import AsyncSandbox, DaytonaError, Image

from holdfast.api.box.box import Box, BoxInfo, Liveness, Power, Wake
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.records import Preview, Step
from holdfast.api.box.snapshots import Snapshot, Volume
from holdfast.api.box.spec import BoxSpec, Lifetime, check_labels
from holdfast.api.errors.boxes import (
    BoxConflict,
    BoxError,
    BoxGone,
    BoxNotFound,
    BoxStopped,
    BoxUnreachable,
    CreateFailed,
    InvalidSpec,
    ProviderRefused,
    Unsupported,
)
from holdfast.api.guest_url import GuestUrl
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.images import DEFAULT_IMAGE
from holdfast.boxes.labels import POOL, matches
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider, Swept, check_new_id, is_box_id
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.daytona import guest_setup, network
from holdfast.providers.daytona.account import Account
from holdfast.providers.daytona.api import (
    RESTORE_SECONDS,
    START_SECONDS,
    DaytonaApi,
    Refused,
    state_name,
)
from holdfast.providers.daytona.box import DaytonaBox
from holdfast.providers.daytona.errors import status_of, translated
from holdfast.providers.daytona.images import Origin, default_origin, origin_of
from holdfast.providers.daytona.records import BoxRecord
from holdfast.providers.daytona.sandboxes import ONE_SHOT_MINUTES, Found, Sandboxes
from holdfast.providers.daytona.states import Phase, power_of
from holdfast.providers.daytona.transport import PtyTransport, kill
from holdfast.providers.daytona.volumes import Volumes, check_mounts
from holdfast.providers.diagnosis import check_account, diagnose_box, reach_address, take_step
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.namespace import namespace_of
from holdfast.providers.record_files import BoxLocks
from holdfast.providers.snapshot_images import SnapshotImages
from holdfast.providers.snapshot_records import SnapshotRecord, SnapshotRecords
from holdfast.providers.stream import StreamEgress, StreamGuestClient
from holdfast.providers.stream.guest_relay import own_environment, own_policy

log = logging.getLogger(__name__)

PREVIEW_HEADER: Final = "x-daytona-preview-token"
_READY_SECONDS: Final = 60.0
_TOUCH_SECONDS: Final = 10.0
_GRACE_MS: Final = 1500
_AT_ONCE: Final = 8
_MOST_REMOVED: Final = 1000
_UNFINISHED_MS: Final = 15 * 60 * 1000
"""A sandbox that was not finished in this time was given up by the process that made it."""
_RESERVED: Final = ("/proc", "/sys", "/dev")
CAPABILITIES: Final = frozenset(
    {
        Capability.ISOLATION,
        Capability.STOP,
        Capability.PTY,
        Capability.DETACHED,
        Capability.CONNECT,
        Capability.PREVIEW,
        Capability.IMAGES,
        Capability.VOLUMES,
        Capability.NETWORK_NONE,
        Capability.NETWORK_ALLOW,
        Capability.NETWORK_OPEN,
        Capability.NETWORK_LIVE,
        Capability.SNAPSHOTS,
        Capability.FORK,
        Capability.POOL,
    }
)
"""Not the limits: Daytona has sizes of machines, in whole cores and gigabytes, and they belong to its snapshots."""


@dataclass(slots=True)
class _Held:
    """What this process holds for one box."""

    guest: StreamGuestClient
    found: Found | None = None
    """As of the last look. Reaches the toolbox while the control plane does not answer."""
    session: str | None = None
    """The PTY session of the last stream, which may not know yet that its stream was lost."""
    started: bool = False
    """Its guest was started a moment ago."""


class DaytonaProvider(Provider):
    """Boxes of one account. `folder` tells them from those of other homes, and has the records of snapshots.

    Without an `egress`, or with `direct`, sandboxes have a network of their own, which Daytona limits.
    """

    name = "daytona"
    snapshot_kind = "daytona-snapshot"
    isolation = "a sandbox at Daytona"
    capabilities: frozenset[Capability] = CAPABILITIES

    def __init__(
        self,
        folder: Path,
        account: Account,
        *,
        image: str | Image | None = None,
        direct: bool = False,
        relay: GuestUrl | None = None,
        egress: Egress | None = None,
    ) -> None:
        """`image` is for boxes that name none: an image, a declarative build, `snapshot:NAME` or `dockerfile:PATH`."""
        self._api = DaytonaApi(account)
        self._folder = folder
        self._image = image
        self._direct = direct or egress is None
        self._relay = relay
        self._egress = StreamEgress(egress, direct=self._direct, relay=relay)
        self.capabilities = CAPABILITIES | self._egress.capabilities
        self._snapshots = SnapshotRecords(folder / "snapshots")
        self.images: SnapshotImages = SnapshotImages(self.name, folder / "images", self._snapshots)
        self._locks = BoxLocks(folder / "locks")
        self._held: dict[str, _Held] = {}
        self._removed: dict[str, None] = {}
        """Boxes that this process removed, the latest last. A list may be out of date."""
        self._starts = asyncio.Semaphore(_AT_ONCE)
        self._resuming: asyncio.Task[None] | None = None
        self._namespace = ""
        self._default = Origin()
        self._volumes: Volumes
        self._sandboxes: Sandboxes

    async def open(self) -> None:
        """Asks Daytona for nothing yet: a server starts, and its other boxes work, while Daytona is out of reach."""
        await asyncio.to_thread(self._prepare)
        self._volumes = Volumes(self._api, self._namespace)
        self._sandboxes = Sandboxes(self._api, self._namespace)
        self._api.open()
        if self._egress.exists:
            self._resuming = asyncio.create_task(self._resume())

    def _prepare(self) -> None:
        self._namespace = namespace_of(self._folder)
        self._snapshots.prepare()
        self.images.prepare()
        self._locks.prepare()
        self._default = default_origin(self._image)

    async def _resume(self) -> None:
        """Serve the egress of boxes that ran on while there was no server. Starts no sandbox."""
        if not (self._folder / "used").exists():
            return  # no box was ever created from this home: nothing to ask for
        try:
            found = await self._list()
        except BoxError as error:
            log.warning("cannot restore the egress of boxes at Daytona: %s", error)
            return
        for each in found:
            if each.phase is Phase.RUNNING and self._egress.wanted(each.record.spec.network):
                try:
                    await self.attach(each.record.id)
                except BoxError as error:
                    log.warning("cannot restore the egress of box %s: %s", each.record.id, error)

    async def close(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
            self._resuming = None
        self._egress.close_all()
        held, self._held = self._held, {}
        try:
            await asyncio.gather(*(each.guest.close() for each in held.values()), return_exceptions=True)
        finally:
            await self._api.close()

    # --- the stream to a box ---

    def sandbox_name(self, id: str) -> str:
        return self._sandboxes.name(id)

    def _hold(self, id: str) -> _Held:
        if id not in self._held:
            self._held[id] = _Held(StreamGuestClient(id, lambda: self._dial(id), lambda: self._verdict(id)))
        return self._held[id]

    def guest(self, id: str) -> StreamGuestClient:
        return self._hold(id).guest

    async def _dial(self, id: str) -> PtyTransport:
        held = self._hold(id)
        try:
            found = await self._running(id)
        except BoxUnreachable:
            # The toolbox may answer although the control plane does not.
            if held.found is None or held.found.phase is not Phase.RUNNING:
                raise
            found = held.found
        with translated(f"box {id} cannot be reached"):
            if held.session is not None:
                # Its bridge may not know yet that we are gone, and would take connections for the egress.
                session, held.session = held.session, None
                with contextlib.suppress(DaytonaError, TimeoutError, OSError):
                    await kill(found.sandbox, session)
            if not held.started:
                found = await self._find_guest(found)
            held.started = False
            transport = await guest_setup.dial(found.sandbox, found.record)
        held.session = transport.session
        return transport

    async def _find_guest(self, found: Found) -> Found:
        """Start the guest if it does not run: the sandbox may have been stopped and started by somebody else."""
        place = await guest_setup.place_guest(self._api, found.sandbox, found.record.spec.workdir)
        if place.runs:
            return found
        record = replace(found.record, guest=place.guest, python=place.python)
        await guest_setup.start_guest(self._api, found.sandbox, record)
        if record != found.record:
            await self._sandboxes.write(found.sandbox, record)
        return replace(found, record=record)

    async def _verdict(self, id: str) -> BoxError | None:
        """Returns why a box whose stream was lost cannot be used, or None if it runs."""
        try:
            await self._running(id)
        except (BoxGone, BoxStopped) as error:
            return error
        return None

    # --- finding ---

    async def _look(self, id: str, *, unfinished: bool = False) -> Found | None:
        """Returns a box, or None if there is no such box. `unfinished` includes those that are being created."""
        found = await self._sandboxes.look(id, unfinished=unfinished)
        if found is not None and id in self._held and found.phase is not Phase.UNKNOWN:
            self._held[id].found = found
        return found

    async def _list(self, *, unfinished: bool = False) -> list[Found]:
        known = [id for id, held in self._held.items() if held.found is not None]
        found = await self._sandboxes.all(known=known, removed=self._removed, unfinished=unfinished)
        for id in set(known) - {each.record.id for each in found}:
            if id in self._held:
                self._held[id].found = None
        return found

    async def _get(self, id: str) -> Found:
        """Raises `BoxGone`."""
        found = await self._look(id)
        if found is None:
            raise BoxGone(f"box {id} is gone")
        if found.gone:
            reason = found.sandbox.error_reason or "no reason given"
            raise BoxGone(f"box {id} is gone: its sandbox is in state {state_name(found.sandbox)}: {reason}")
        return found

    async def _running(self, id: str) -> Found:
        """Returns a box that runs, and waits for one that is starting. Raises `BoxGone` or `BoxStopped`."""
        found = await self._get(id)
        if found.phase in (Phase.STARTING, Phase.BUSY):
            with translated(f"box {id} cannot be reached"):
                await self._api.wait_until_settled(found.sandbox, START_SECONDS)
        if found.power is not Power.RUNNING:
            raise BoxStopped(f"box {id} is {state_name(found.sandbox)}", hint=f"holdfast box start {id}")
        return found

    def _describe(self, found: Found, power: Power | None = None) -> BoxInfo:
        record = found.record
        power = power or power_of(found.phase) or Power.STOPPED
        return BoxInfo(record.id, self.name, record.spec, record.labels, power, record.created_at, record.snapshot)

    def _box(self, found: Found, power: Power, wake: Wake | None = None) -> Box:
        id, environment = found.record.id, found.record.environment
        return DaytonaBox(
            self._describe(found, power), self, self.guest(id), self._egress, wake, environment=environment
        )

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        found = [each for each in await self._list() if not each.gone and matches(each.record.labels, labels or {})]
        return sorted((self._describe(each) for each in found), key=lambda info: (info.created_at, info.id))

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        try:
            found = await self._look(id)
        except BoxUnreachable:
            held = self._held.get(id)
            if held is None or not held.guest.alive or held.found is None or held.found.phase is not Phase.RUNNING:
                raise
            found = held.found  # its stream is open, so it can be used without the control plane
        if found is None:
            raise BoxNotFound(f"there is no daytona box {id}")
        if found.gone:
            await self._get(id)
        power = found.power
        if power is Power.RUNNING and not self._egress.serves(id):
            await self._open_egress(self._hold(id), found.record)
        return self._box(found, power, wake)

    async def probe(self, id: str) -> Liveness:
        try:
            found = await self._look(id)
        except BoxError:
            return Liveness.UNKNOWN
        if found is None or found.gone:
            return Liveness.GONE
        return Liveness.UNKNOWN if found.phase is Phase.UNKNOWN else Liveness.LIVE

    async def power(self, id: str) -> Power:
        return (await self._get(id)).power

    # --- creating ---

    def check(self, spec: BoxSpec, id: str, labels: Mapping[str, str]) -> None:
        """Raises an error for what cannot be created."""
        require(self.name, self.capabilities, *needed(spec))
        check_new_id(id)
        check_labels(labels)
        for place in [each.path for each in spec.volumes] + [spec.workdir]:
            if place == "/" or any(f"{place}/".startswith(f"{own}/") for own in _RESERVED):
                raise InvalidSpec(f"{place} cannot be used for files of a box at Daytona: it is reserved")
        check_mounts(spec)
        origin_of(spec.image)
        self._network(spec.network)

    def _network(self, policy: NetworkPolicy) -> network.DaytonaNetwork:
        """Returns Daytona's own settings. Raises `Unsupported` for what they cannot express."""
        return network.direct(own_policy(policy, direct=self._direct, relay=self._relay))

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        self.check(spec, id, labels or {})
        origin = await asyncio.to_thread(self._origin, spec.image)
        return await self._create(BoxRecord(id, spec, {**spec.labels, **(labels or {})}, now_ms()), origin)

    def _origin(self, image: str | None) -> Origin:
        if image is None or image == DEFAULT_IMAGE:
            return self._default
        named = origin_of(image)
        if named.is_registry_image and (reference := self.images.reference(image)) is not None:
            return Origin(snapshot=reference)
        return named

    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        self.check(spec, id, labels or {})
        kept = self._snapshots.get(snapshot)
        record = BoxRecord(id, spec, {**spec.labels, **(labels or {})}, now_ms(), kept.id, parent=kept.id)
        return await self._create(record, Origin(snapshot=kept.reference))

    async def _create(self, record: BoxRecord, origin: Origin) -> Box:
        id = record.id
        record = replace(record, maker=secrets.token_hex(8))
        self._note_use()
        async with self._locks.lock(id):
            with translated(f"box {id} cannot be created"):
                mounts = await self._volumes.mounts(record.spec)
                sandbox = await self._sandboxes.create(record, origin, mounts, self._network(record.spec.network))
            return await self._finish(Found(sandbox, record))

    def _note_use(self) -> None:
        (self._folder / "used").touch(mode=0o600)

    async def _finish(self, found: Found) -> Box:
        """Make a new sandbox a box, or leave none behind."""
        id = found.record.id
        self._removed.pop(id, None)
        try:
            async with self._starts:
                with translated(f"box {id} cannot be created"):
                    found = await self._bring_up(found)
        except BaseException:
            try:
                await to_the_end(self._discard(found.sandbox, id))
            except BoxError as error:
                log.warning("a sandbox is left of box %s, the next sweep will retry: %s", id, error)
            raise
        return self._box(found, Power.RUNNING)

    async def _discard(self, sandbox: AsyncSandbox, id: str) -> None:
        """Delete a sandbox, and what this process holds for it."""
        await self._release(id)
        with translated(f"box {id} cannot be removed"):
            await self._api.delete(sandbox)
        self._removed[id] = None
        while len(self._removed) > _MOST_REMOVED:
            self._removed.pop(next(iter(self._removed)))

    async def _release(self, id: str) -> None:
        """Let go of what this process holds for a box."""
        self._egress.close(id)
        held = self._held.pop(id, None)
        if held is not None:
            held.session = None
            await held.guest.close()

    async def _bring_up(self, found: Found) -> Found:
        """Make the guest of a running sandbox ready, note what it is, and wait for its answer."""
        record, sandbox = found.record, found.sandbox
        held = self._hold(record.id)
        await held.guest.close()
        put = guest_setup.place_guest if record.home else guest_setup.bring_guest
        place = await put(self._api, sandbox, record.spec.workdir)
        record = replace(
            record,
            ready=True,
            failed=False,
            home=place.home,
            guest=place.guest,
            python=place.python,
            environment=own_environment(place.environment, direct=self._direct, relay=self._relay),
        )
        if not place.runs:
            await guest_setup.start_guest(self._api, sandbox, record)
        await self._sandboxes.write(sandbox, record)
        held.session, held.started = None, True
        found = held.found = Found(sandbox, record)
        try:
            await held.guest.ask({"op": "ping", "workdir": record.spec.workdir}, seconds=_READY_SECONDS)
        except GuestRefused as refused:
            raise CreateFailed(f"box {record.id} did not start: {refused}") from None
        await self._open_egress(held, record)
        return found

    async def _open_egress(self, held: _Held, record: BoxRecord) -> None:
        await self._egress.open(held.guest, record.spec.network, record.labels)

    # --- lifecycle ---

    @contextlib.asynccontextmanager
    async def _changing(self, id: str, what: str) -> AsyncIterator[Found]:
        """Keep others away from a box while it is changed. Raises `BoxGone`."""
        if not is_box_id(id):
            raise BoxGone(f"box {id} is gone")
        async with self._locks.lock(id):
            try:
                found = await self._get(id)
            except BoxGone:
                await self._release(id)
                raise
            with translated(what):
                yield found

    async def stop_box(self, id: str) -> None:
        async with self._changing(id, f"box {id} cannot be stopped") as found:
            await self._api.wait_until_settled(found.sandbox, START_SECONDS)
            if found.phase in (Phase.RUNNING, Phase.PAUSED):
                await to_the_end(self._stop(found))

    async def _stop(self, found: Found) -> None:
        held = self._hold(found.record.id)
        async with held.guest.stopping(_GRACE_MS, dial=False):
            self._egress.close(found.record.id)
            await self._api.stop(found.sandbox)
            held.session = None
            await held.guest.close()

    async def start_box(self, id: str) -> None:
        async with self._changing(id, f"box {id} cannot be started") as found:
            phase = await self._api.wait_until_settled(found.sandbox, START_SECONDS)
            if phase is not Phase.RUNNING:
                await to_the_end(self._start(found))

    async def _start(self, found: Found) -> None:
        seconds = RESTORE_SECONDS if state_name(found.sandbox) == "archived" else START_SECONDS
        try:
            await self._api.start(found.sandbox, seconds)
        except Refused as refused:
            if found.sandbox.recoverable:
                raise
            # For good: whoever asks for this box next gets another one.
            await self._sandboxes.write(found.sandbox, replace(found.record, failed=True))
            raise BoxGone(f"box {found.record.id} is gone: it cannot be started: {refused}") from None
        await self._bring_up(found)

    async def pause_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.PAUSE)

    async def remove(self, id: str) -> int:
        if not is_box_id(id):
            return 0
        async with self._locks.lock(id):
            return await to_the_end(self._remove(id))

    async def _remove(self, id: str) -> int:
        found = await self._look(id, unfinished=True)
        if found is None:
            await self._release(id)
            return 0
        freed = await self._measure(found) if found.record.home else 0
        await self._discard(found.sandbox, id)
        return freed

    async def _measure(self, found: Found) -> int:
        """Returns about how many bytes the files of a box have, or 0 if it does not run."""
        if found.phase is Phase.RUNNING:
            with contextlib.suppress(DaytonaError, TimeoutError, OSError):
                return await guest_setup.measure(self._api, found.sandbox, found.record)
        return 0

    async def hand_over(self, id: str, spec: BoxSpec, *, labels: Mapping[str, str], created_at: int) -> Box:
        require(self.name, self.capabilities, Capability.POOL)
        check_labels(labels)
        async with self._changing(id, f"box {id} cannot be handed over") as found:
            record = found.record
            if record.labels.get(POOL) != spec.hash:
                raise BoxConflict(f"box {id} is no longer in the pool, or was created for another spec")
            record = replace(record, spec=spec, labels={**spec.labels, **labels}, created_at=created_at)
            await to_the_end(self._sandboxes.write(found.sandbox, record))
            if found.power is not Power.RUNNING:
                raise BoxStopped(f"box {id} is stopped", hint=f"holdfast box start {id}")
            if spec.lifetime is Lifetime.ONE_SHOT:
                await self._api.set_auto_delete(found.sandbox, ONE_SHOT_MINUTES)
            held = self._hold(id)
            try:
                # Its idle time begins now, and its folder is as old as the box.
                await held.guest.ask({"op": "touch", "paths": [spec.workdir]}, seconds=_TOUCH_SECONDS)
            except GuestRefused as refused:
                raise BoxUnreachable(f"the guest of box {id} cannot be handed over: {refused}") from None
            await self._apply_network(replace(found, record=record))
        return self._box(replace(found, record=record), Power.RUNNING)

    # --- the network ---

    async def set_network(self, id: str, policy: NetworkPolicy) -> None:
        self._network(policy)
        async with self._changing(id, f"the network of box {id} cannot be changed") as found:
            record = replace(found.record, spec=replace(found.record.spec, network=policy))
            await to_the_end(self._sandboxes.write(found.sandbox, record))
            await self._apply_network(replace(found, record=record))

    async def _apply_network(self, found: Found) -> None:
        if self._direct:
            await self._api.set_network(found.sandbox, self._network(found.record.spec.network))
        elif found.phase is Phase.RUNNING:
            await self._open_egress(self._hold(found.record.id), found.record)

    async def open_guest_api(self, id: str) -> str:
        async with self._changing(id, f"the guest API cannot be opened to box {id}") as found:
            if found.power is not Power.RUNNING:
                raise BoxStopped(f"box {id} is not running")
            if self._relay is not None:  # the sandbox may be older than the setting
                await self._api.set_network(found.sandbox, self._network(found.record.spec.network))
            return await self._egress.open_guest_api(self.guest(id), found.record.spec.network, found.record.labels)

    async def preview(self, id: str, port: int, seconds: int | None = None) -> Preview:
        """Returns the address of a port at Daytona. With `seconds`, one that works alone for so long."""
        found = await self._running(id)
        with translated(f"port {port} of box {id} has no address"):
            url, token = await self._api.preview(found.sandbox, port, seconds)
        return Preview(url, {} if seconds is not None else {PREVIEW_HEADER: token})

    # --- snapshots ---

    async def snapshot_box(self, id: str, labels: Mapping[str, str]) -> Snapshot:
        async with self._changing(id, f"a snapshot of box {id} cannot be taken") as found:
            return await to_the_end(self._take(found, labels))

    async def _take(self, found: Found, labels: Mapping[str, str]) -> Snapshot:
        record = found.record
        parent = None if record.parent is None else self._snapshots.find(record.parent)
        total = await self._measure(found)
        before = 0 if parent is None else parent.total
        id = new_id("s")
        name = self.sandbox_name(id)
        try:
            await self._api.snapshot(found.sandbox, name)
        except (DaytonaError, TimeoutError) as error:
            await self._refuse_missing_feature(error, record.id, "take snapshots of sandboxes")
            with contextlib.suppress(DaytonaError, TimeoutError, OSError):
                await self._api.delete_snapshot(name)
            raise
        made = SnapshotRecord(
            id, name, record.id, record.parent, max(0, total - before), total or before, now_ms(), dict(labels)
        )
        self._snapshots.write(made)
        await self._sandboxes.write(found.sandbox, replace(record, parent=id))
        return made.describe(self.name, self.snapshot_kind)

    async def _refuse_missing_feature(self, error: BaseException, id: str, what: str) -> None:
        """Raises a clear error if Daytona does not offer something, and `BoxGone` if the sandbox is gone."""
        status = status_of(error)
        if status == 404:
            await self._get(id)
            raise Unsupported(
                f"this Daytona cannot {what}: it does not have that feature (404)",
                hint=f"ask whoever runs {self._api.account.api_url} to update it",
            ) from None
        if status == 403:
            raise ProviderRefused(
                f"this Daytona does not let you {what}: {error}",
                hint="have the feature switched on for your organization, or use a key that may do this",
            ) from None

    async def fork_box(self, id: str, new: str | None, labels: Mapping[str, str]) -> Box:
        new = new or new_id("b")
        async with self._changing(id, f"box {id} cannot be forked") as found:
            origin = found.record
            self.check(origin.spec, new, labels)
            async with self._locks.lock(new):
                sandbox = await to_the_end(self._fork_sandbox(found, new))
                fork = BoxRecord(
                    new, origin.spec, {**origin.spec.labels, **labels}, now_ms(), maker=secrets.token_hex(8)
                )
                return await self._finish(Found(sandbox, fork))

    async def _fork_sandbox(self, found: Found, new: str) -> AsyncSandbox:
        name = self.sandbox_name(new)
        try:
            return await self._api.fork(found.sandbox, name)
        except DaytonaError as error:
            await self._refuse_missing_feature(error, found.record.id, "fork sandboxes")
            raise

    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        found = await asyncio.to_thread(self._snapshots.all)
        return [each.describe(self.name, self.snapshot_kind) for each in found if matches(each.labels, labels or {})]

    async def snapshot(self, id: str) -> Snapshot:
        return self._snapshots.get(id).describe(self.name, self.snapshot_kind)

    async def delete_snapshot(self, id: str) -> int:
        kept = self._snapshots.get(id)
        self.images.check_unused(id)
        with translated(f"snapshot {id} cannot be deleted"):
            await to_the_end(self._api.delete_snapshot(kept.reference))
        self._snapshots.remove(id)
        return kept.size

    # --- volumes ---

    async def create_volume(self, name: str) -> Volume:
        self._note_use()
        with translated(f"volume {name} cannot be created"):
            return await self._volumes.create(name)

    async def volumes(self) -> list[Volume]:
        with translated("volumes cannot be listed"):
            return await self._volumes.all()

    async def delete_volume(self, name: str) -> int:
        """Returns 0: Daytona does not tell how large a volume is."""
        records = [each.record for each in await self._list(unfinished=True)]
        with translated(f"volume {name} cannot be deleted"):
            await self._volumes.delete(name, records)
        return 0

    # --- housekeeping ---

    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        removed: list[str] = []
        freed = 0
        for each in await self._list(unfinished=True):
            why = self._why_remove(each.record, keep)
            if why is None or self._locks.is_locked(each.record.id):
                continue
            # Again: a list that is out of date shows boxes as they were during their creation.
            found = await self._look(each.record.id, unfinished=True)
            if found is not None and self._why_remove(found.record, keep) is not None:
                freed += await self.remove(each.record.id)
                removed.append(f"box {each.record.id}: {why}")
        for sandbox in await self._sandboxes.strays(now_ms() - _UNFINISHED_MS):
            with translated(f"sandbox {sandbox.name} cannot be removed"):
                await self._api.delete(sandbox)
            removed.append(f"sandbox {sandbox.name}: a fork that was never finished")
        return Swept(tuple(removed), freed)

    def _why_remove(self, record: BoxRecord, keep: Collection[str] | None) -> str | None:
        if not record.ready:
            return "its creation was interrupted" if now_ms() - record.created_at > _UNFINISHED_MS else None
        return "nobody keeps it" if keep is not None and record.id not in keep else None

    async def diagnose(self, id: str | None = None) -> list[Step]:
        steps = [await take_step("daytona api", self._ask_api, "holdfast doctor")]
        if id is not None and steps[-1].ok:
            steps += await diagnose_box(self, id)
        return steps

    async def check_access(self) -> list[Step]:
        return await check_account(self.name, lambda: reach_address(self._api.account.api_url), self._ask_api)

    async def _ask_api(self) -> str:
        return f"{len(await self._list())} boxes at {self._api.account.api_url}"
