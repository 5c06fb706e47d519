"""Boxes that are sprites. The name of a sprite is the identity of its box; our guest in it does the work.

The Sprites API creates, finds, checkpoints and deletes sprites. Everything else goes over one stream to the guest, so
that a sprite reaches a server behind NAT.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sprites.exceptions import SpriteError
from sprites.types import NetworkPolicy as SpriteNetworkPolicy

from holdfast.api.box.box import Box, BoxInfo, Liveness, Power, Wake
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.records import Step
from holdfast.api.box.snapshots import Holding, Snapshot
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
from holdfast.api.guest_url import GuestUrl
from holdfast.api.ids import new_id, now_ms
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.labels import matches
from holdfast.boxes.machine_plan import MachinePlan
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider, Swept
from holdfast.boxes.shielded import to_the_end
from holdfast.providers.diagnosis import check_account
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.namespace import check_namespace
from holdfast.providers.sprites import guest_setup, network, snapshots
from holdfast.providers.sprites.account import Account
from holdfast.providers.sprites.api import Found, SpritesApi
from holdfast.providers.sprites.box import SpriteBox
from holdfast.providers.sprites.errors import ApiProblem, translated
from holdfast.providers.sprites.health import diagnose_api, diagnose_sprite
from holdfast.providers.sprites.home_files import HomeFiles
from holdfast.providers.sprites.idle_streams import IDLE_SECONDS, IdleStreams, Quiet
from holdfast.providers.sprites.records import BoxRecord
from holdfast.providers.sprites.setup import SpriteSetup
from holdfast.providers.sprites.transport import SpriteTransport
from holdfast.providers.stream import StreamEgress, StreamGuestClient
from holdfast.providers.stream.guest_relay import own_environment, own_policy

log = logging.getLogger(__name__)

_ID: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_SPRITE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_START_SECONDS: Final = 60.0
_GRACE_MS: Final = 1500
_AT_ONCE: Final = 8
_UNFINISHED_MS: Final = 15 * 60 * 1000
"""A sprite that was not finished in this time was given up by the process that made it."""
CAPABILITIES: Final = frozenset(
    {
        Capability.ISOLATION,
        Capability.STOP,
        Capability.PTY,
        Capability.DETACHED,
        Capability.CONNECT,
        Capability.NETWORK_NONE,
        Capability.NETWORK_ALLOW,
        Capability.NETWORK_OPEN,
        Capability.NETWORK_LIVE,
        Capability.SNAPSHOTS,
        Capability.FORK,
    }
)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a new box gets its files from."""

    record: BoxRecord
    kept: snapshots.Kept


@dataclass(slots=True)
class _Held:
    """What this process holds for one box."""

    guest: StreamGuestClient
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    record: BoxRecord | None = None
    """As of the last look, or the last change by this process."""
    session: str | None = None
    """The latest command that joined our stream to the guest."""
    quiet: Quiet | None = None
    """Set while the stream is closed because nothing happens in the box."""
    reopens: bool = False
    """The next stream serves the egress again."""
    reopening: asyncio.Task[None] | None = None


class SpritesProvider(Provider):
    """Boxes of one account. `namespace` separates them from those of other homes. `folder` is in the home, and ours.

    Without an `egress`, or with `direct`, sprites have a network of their own, which their policy limits.
    """

    name = "sprites"
    snapshot_kind = snapshots.KIND
    isolation = "virtual machine"
    capabilities: frozenset[Capability] = CAPABILITIES

    def __init__(
        self,
        account: Account,
        *,
        namespace: str,
        folder: Path,
        egress: Egress | None = None,
        direct: bool = False,
        relay: GuestUrl | None = None,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`idle_seconds` is how long nothing may happen in a box before its stream is closed."""
        check_namespace(namespace)
        self._api = SpritesApi(account)
        self._files = HomeFiles(folder)
        self._prefix = f"hf-{namespace}-"
        self._direct = direct or egress is None
        self._relay = relay
        self._egress = StreamEgress(egress, direct=self._direct, relay=relay)
        self.capabilities = CAPABILITIES | self._egress.capabilities
        self._held: dict[str, _Held] = {}
        self._creating: set[str] = set()
        self._starts = asyncio.Semaphore(_AT_ONCE)
        self._resuming: asyncio.Task[None] | None = None
        self._idle = IdleStreams(
            lambda: {id: held.guest for id, held in self._held.items()}, self._hang_up, idle_seconds
        )
        self._labels_refused = False
        """The API takes no labels of ours: records are in files of the home."""

    async def open(self) -> None:
        await asyncio.to_thread(self._files.prepare)
        self._api.open()
        self._idle.start()
        if self._egress.exists:
            self._resuming = asyncio.create_task(self._resume())

    async def _resume(self) -> None:
        """Serve the egress of boxes that ran on while there was no server. Wakes no sprite."""
        try:
            records = await self._records(awake=True)
        except BoxError as error:
            log.warning("cannot restore the egress of sprites: %s", error)
            return
        for record in records:
            whole = record.ready and not record.stopped and not record.deleted
            if whole and self._egress.wanted(record.spec.network):
                try:
                    await self.attach(record.id)
                except BoxError as error:
                    log.warning("cannot restore the egress of box %s: %s", record.id, error)

    async def close(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
            self._resuming = None
        await self._idle.close()
        self._egress.close_all()
        held, self._held = self._held, {}
        try:
            reopening = [each.reopening for each in held.values() if each.reopening is not None]
            for task in reopening:
                task.cancel()
            await asyncio.gather(*reopening, *(each.guest.close() for each in held.values()), return_exceptions=True)
        finally:
            await self._api.close()

    # --- the stream to a box ---

    def sprite_name(self, id: str) -> str:
        return f"{self._prefix}{id}"

    def _hold(self, id: str) -> _Held:
        if id not in self._held:
            self._held[id] = _Held(StreamGuestClient(id, lambda: self._dial(id), lambda: self._verdict(id)))
        return self._held[id]

    def guest(self, id: str) -> StreamGuestClient:
        return self._hold(id).guest

    async def _dial(self, id: str) -> SpriteTransport:
        record = await self._running_record(id)
        held, name = self._hold(id), self.sprite_name(id)
        with translated(f"box {id} cannot be reached"):
            if held.session is not None:
                # Its bridge may not know yet that we are gone, and would take connections for the egress.
                session, held.session = held.session, None
                await self._api.kill(name, session)
            transport = _RememberingTransport(await self._api.connect(name, guest_setup.join_command(record)), held)
        held.quiet = None
        if held.reopens:
            held.reopens = False
            held.reopening = asyncio.create_task(self._reopen_egress(held, record))
        return transport

    async def _reopen_egress(self, held: _Held, record: BoxRecord) -> None:
        """Serve the egress over a new stream. What a command connects to meanwhile waits in the box."""
        try:
            await self._egress.open_guest_api(held.guest, record.spec.network, record.labels)
        except BoxError as error:
            log.warning("cannot restore the egress of box %s: %s", record.id, error)

    async def _hang_up(self, id: str, quiet: Quiet) -> None:
        """Close the stream of a box in which nothing happens, unless a call has begun meanwhile."""
        held = self._held.get(id)
        if held is None or held.lock.locked():
            return
        async with held.lock:
            await held.guest.stop_serving()
            if held.guest.busy:
                await self._egress.serve_again(held.guest)
                return
            # Without a pause from here on: a call that begins while the stream is being closed finds all of this.
            held.quiet, held.reopens = quiet, self._egress.admits(id)
            self._egress.close(id)
            await held.guest.hang_up()

    def quiet(self, id: str) -> Quiet | None:
        """Returns what is known of a box whose stream is closed because nothing happens in it."""
        held = self._held.get(id)
        return None if held is None or held.guest.alive else held.quiet

    async def _running_record(self, id: str) -> BoxRecord:
        """Raises `BoxGone` or `BoxStopped`."""
        record = await self._record(id)
        if record.stopped:
            raise BoxStopped(f"box {id} is stopped", hint=f"holdfast box start {id}")
        return record

    async def _verdict(self, id: str) -> BoxError | None:
        """Returns why a box whose stream was lost cannot be used, or None if it runs."""
        try:
            await self._running_record(id)
        except (BoxGone, BoxStopped) as error:
            return error
        return None

    # --- records ---

    async def _record_of(self, found: Found) -> BoxRecord | None:
        record = BoxRecord.from_labels(found.labels)
        if record is None:
            record = await asyncio.to_thread(self._files.read, found.name.removeprefix(self._prefix))
        return record if record is not None and self.sprite_name(record.id) == found.name else None

    async def _record(self, id: str) -> BoxRecord:
        """Returns the record of a whole box. Raises `BoxGone`."""
        record = await self._look(id)
        if record is None:
            raise BoxGone(f"box {id} is gone")
        return record

    async def _look(self, id: str, *, unfinished: bool = False, deleted: bool = False) -> BoxRecord | None:
        """Returns the record of a box, or None if there is no such box.

        `unfinished` includes boxes that are being created, `deleted` those whose sprite is kept for its snapshots.
        """
        if not _ID.fullmatch(id):
            return None
        with translated(f"box {id} cannot be looked up"):
            try:
                record = await self._record_of(await self._api.get(self.sprite_name(id)))
            except ApiProblem as problem:
                if problem.missing:
                    return None
                raise
        if record is None or (record.deleted and not deleted):
            return None
        return record if record.ready or unfinished else None

    async def _write(self, record: BoxRecord) -> None:
        name = self.sprite_name(record.id)
        if record.id in self._held:
            self._held[record.id].record = record
        if not self._labels_refused:
            try:
                await self._api.set_labels(name, record.to_labels())
                return
            except ApiProblem as problem:
                if not problem.malformed:
                    raise
                self._labels_refused = True
        await asyncio.to_thread(self._files.write, record)

    def _describe(self, record: BoxRecord) -> BoxInfo:
        power = Power.STOPPED if record.stopped else Power.RUNNING
        return BoxInfo(record.id, self.name, record.spec, record.labels, power, record.created_at, record.snapshot)

    def _box(self, record: BoxRecord, wake: Wake | None = None) -> Box:
        held = self._hold(record.id)
        held.record = record
        return SpriteBox(self._describe(record), self, held.guest, self._egress, wake, environment=record.environment)

    # --- creating ---

    def check(self, spec: BoxSpec, id: str, labels: Mapping[str, str]) -> None:
        """Raises an error for what cannot be created."""
        require(self.name, self.capabilities, *needed(spec))
        if not _ID.fullmatch(id):
            raise InvalidSpec(f"{id!r} cannot be the id of a box: lower case letters, digits and -, at most 42")
        check_labels(labels)
        if spec.workdir == "/":
            raise InvalidSpec("/ cannot be the working directory of a box: choose a folder")
        self._rules(spec.network)

    def _rules(self, policy: NetworkPolicy) -> SpriteNetworkPolicy:
        """Returns the sprite's own rules. Raises `Unsupported` for what they cannot express."""
        return network.direct(own_policy(policy, direct=self._direct, relay=self._relay))

    async def create(self, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        self.check(spec, id, labels or {})
        return await self._create(BoxRecord(id, spec, {**spec.labels, **(labels or {})}, now_ms()), None)

    async def _create(self, record: BoxRecord, files: _Source | None) -> Box:
        """Create a box, empty or with the files of a snapshot."""
        id = record.id
        if id in self._creating:
            raise BoxConflict(f"box {id} is already being created")
        record = replace(record, maker=secrets.token_hex(8))
        self._creating.add(id)
        try:
            with translated(f"box {id} cannot be created"):
                await self._create_sprite(record)
            try:
                record = await self._furnish(record, files)
            except BaseException:
                try:
                    await to_the_end(self._discard(id))
                except BoxError as error:
                    log.warning("a sprite is left of box %s, the next sweep will retry: %s", id, error)
                raise
        finally:
            self._creating.discard(id)
        return self._box(record)

    async def _create_sprite(self, record: BoxRecord) -> None:
        """Create the sprite, or leave none behind: a cancelled request may still be carried out."""
        try:
            await to_the_end(self._request_sprite(record))
        except asyncio.CancelledError:
            with contextlib.suppress(BoxError, ApiProblem, SpriteError, OSError):
                await to_the_end(self._discard_own(record))
            raise

    async def _request_sprite(self, record: BoxRecord) -> None:
        name = self.sprite_name(record.id)
        try:
            if not self._labels_refused:
                try:
                    await self._api.create(name, record.to_labels())
                    return
                except ApiProblem as problem:
                    if not problem.malformed:
                        raise
                    self._labels_refused = True
            await self._api.create(name, None)
            await asyncio.to_thread(self._files.write, record)
        except ApiProblem as problem:
            if not problem.conflict:
                raise
            # It exists. If the answer to our own request was lost, it has our record.
            if not await self._is_own(record):
                raise BoxConflict(f"there is already a sprite {name}") from None

    async def _is_own(self, record: BoxRecord) -> bool:
        found = await self._look(record.id, unfinished=True)
        return found is not None and found.maker == record.maker

    async def _discard_own(self, record: BoxRecord) -> None:
        if await self._is_own(record):
            await self._discard(record.id)

    async def _furnish(self, record: BoxRecord, files: _Source | None) -> BoxRecord:
        """Make a new sprite ready: its guest, its policy, its stream."""
        id, name = record.id, self.sprite_name(record.id)
        async with self._starts:
            with translated(f"box {id} cannot be created"):
                place = await guest_setup.place_guest(self._api, name, record.spec.workdir)
                environment = own_environment(place.environment, direct=self._direct, relay=self._relay)
                record = replace(
                    record, home=place.home, guest=place.guest, python=place.python, environment=environment
                )
                if files is not None:
                    folders = dict.fromkeys((files.record.home, files.record.spec.workdir))
                    await snapshots.copy_files(
                        self._api, self.sprite_name(files.record.id), files.kept, name, list(folders)
                    )
                await self._api.set_policy(name, self._rules(record.spec.network))
                record = replace(record, ready=True)
                await self._start(record)
        return record

    async def _start(self, record: BoxRecord) -> None:
        """Start the guest of a sprite, note that it runs, and wait for its answer."""
        held = self._hold(record.id)
        await held.guest.close()
        held.guest.set_paused(False)
        held.session, held.quiet, held.reopens = None, None, False
        await guest_setup.start_guest(self._api, self.sprite_name(record.id), record)
        await self._write(record)
        try:
            await self._egress.open(held.guest, record.spec.network, record.labels)
            await held.guest.ask({"op": "ping", "workdir": record.spec.workdir}, seconds=_START_SECONDS)
        except GuestRefused as refused:
            raise CreateFailed(f"box {record.id} did not start: {refused}") from None

    async def _discard(self, id: str) -> None:
        """Delete a sprite, and what this process holds for it."""
        with translated(f"box {id} cannot be removed"):
            await self._api.destroy(self.sprite_name(id))
        await asyncio.to_thread(self._files.remove, id)
        await self._release(id)

    # --- finding ---

    async def find(self, labels: Mapping[str, str] | None = None) -> list[BoxInfo]:
        records = [each for each in await self._records() if each.ready and not each.deleted]
        infos = [self._describe(each) for each in records if matches(each.labels, labels or {})]
        return sorted(infos, key=lambda info: (info.created_at, info.id))

    async def _records(self, *, awake: bool = False) -> list[BoxRecord]:
        """Returns the records of all sprites of ours, whole or not. With `awake`, only of those that run now."""
        with translated("boxes cannot be listed"):
            found = []
            for each in await self._api.list_sprites(self._prefix):
                if awake and each.asleep:
                    continue
                with contextlib.suppress(ApiProblem):  # deleted since it was listed
                    record = await self._record_of(each)
                    if record is not None:
                        found.append(record)
        return found

    async def attach(self, id: str, *, wake: Wake | None = None) -> Box:
        try:
            record = await self._look(id)
        except BoxUnreachable:
            held = self._held.get(id)
            if held is None or not held.guest.alive or held.record is None:
                raise
            record = held.record  # its stream is open, so it can be used without the control plane
        if record is None:
            raise BoxNotFound(f"there is no sprite for box {id}")
        # A box whose stream is closed is served again with its first call.
        if not record.stopped and not self._egress.serves(id) and self.quiet(id) is None:
            await self._egress.open(self.guest(id), record.spec.network, record.labels)
        return self._box(record, wake)

    async def probe(self, id: str) -> Liveness:
        try:
            return Liveness.LIVE if await self._look(id) is not None else Liveness.GONE
        except BoxError:
            return Liveness.UNKNOWN

    async def power(self, id: str) -> Power:
        return self._describe(await self._record(id)).power

    # --- lifecycle ---

    @contextlib.asynccontextmanager
    async def _changing(self, id: str, what: str) -> AsyncIterator[tuple[BoxRecord, _Held]]:
        """Hold the lock of a whole box in this process. Raises `BoxGone`."""
        held = self._hold(id)
        async with held.lock:
            try:
                record = await self._record(id)
            except BoxGone:
                self._held.pop(id, None)
                raise
            with translated(what):
                yield record, held

    async def stop_box(self, id: str) -> None:
        async with self._changing(id, f"box {id} cannot be stopped") as (record, held):
            if not record.stopped:
                await to_the_end(self._stop(replace(record, stopped=True), held))

    async def _stop(self, record: BoxRecord, held: _Held) -> None:
        async with held.guest.stopping(_GRACE_MS):
            await self._write(record)  # if it is interrupted from here on, the next start ends what still runs
            self._egress.close(record.id)
            await guest_setup.end_guest(self._api, self.sprite_name(record.id), record)
            await held.guest.close()

    async def start_box(self, id: str) -> None:
        async with self._changing(id, f"box {id} cannot be started") as (record, _):
            if record.stopped:
                await to_the_end(self._restart(record))

    async def _restart(self, record: BoxRecord) -> None:
        name = self.sprite_name(record.id)
        await guest_setup.end_guest(self._api, name, record)  # of a stop that was interrupted
        place = await guest_setup.place_guest(self._api, name, record.spec.workdir)
        await self._start(replace(record, stopped=False, guest=place.guest, python=place.python))

    async def pause_box(self, id: str) -> None:
        require(self.name, self.capabilities, Capability.PAUSE)

    async def remove(self, id: str) -> int:
        if not _ID.fullmatch(id):
            return 0
        held = self._hold(id)
        async with held.lock:
            freed = await to_the_end(self._remove(id))
        self._held.pop(id, None)
        return freed

    async def _remove(self, id: str) -> int:
        record = await self._look(id, unfinished=True, deleted=True)
        if record is None or record.deleted:
            await self._release(id)
            return 0
        with translated(f"box {id} cannot be removed"):
            if await snapshots.kept_in(self._api, self._files, self.name, self.sprite_name(id), record):
                # The checkpoints would go with the sprite. Its last snapshot takes it along.
                await self._write(replace(record, deleted=True))
                await guest_setup.end_guest(self._api, self.sprite_name(id), record)
                await self._release(id)
                return 0
        return await self._destroy(record)

    async def _destroy(self, record: BoxRecord) -> int:
        """Delete a sprite. Returns about how many bytes its files had, or 0 if it sleeps."""
        freed, name = 0, self.sprite_name(record.id)
        if record.home:
            with contextlib.suppress(ApiProblem, SpriteError, TimeoutError, OSError):
                if not (await self._api.get(name)).asleep:
                    freed = await guest_setup.measure(self._api, name, record)
        await self._discard(record.id)
        return freed

    async def _release(self, id: str) -> None:
        """Let go of what this process holds for a box."""
        self._egress.close(id)
        held = self._held.pop(id, None)
        if held is not None:
            await held.guest.close()

    async def set_network(self, id: str, policy: NetworkPolicy) -> None:
        rules = self._rules(policy)
        async with self._changing(id, f"the network of box {id} cannot be changed") as (record, held):
            record = replace(record, spec=replace(record.spec, network=policy))
            await to_the_end(self._write(record))
            await self._api.set_policy(self.sprite_name(id), rules)
            if not record.stopped:
                await self._egress.open(held.guest, record.spec.network, record.labels)

    async def open_guest_api(self, id: str) -> str:
        async with self._changing(id, f"the guest API cannot be opened to box {id}") as (record, held):
            if record.stopped:
                raise BoxStopped(f"box {id} is not running")
            if self._relay is not None:  # the sprite may be older than the setting
                await self._api.set_policy(self.sprite_name(id), self._rules(record.spec.network))
            return await self._egress.open_guest_api(held.guest, record.spec.network, record.labels)

    async def set_up_machine(self, plan: MachinePlan, tell: Callable[[Step], None]) -> bool:
        is_box = await self._look(plan.machine) is not None
        name = self.sprite_name(plan.machine) if is_box else plan.machine
        if not _SPRITE.fullmatch(name):
            raise InvalidSpec(f"{name[:80]!r} cannot be the name of a sprite: lower case letters, digits and -")
        return await SpriteSetup(self._api, name, plan, tell).run()

    # --- snapshots ---

    async def restore(self, snapshot: str, spec: BoxSpec, *, id: str, labels: Mapping[str, str] | None = None) -> Box:
        self.check(spec, id, labels or {})
        source = await self._source(snapshot)
        record = BoxRecord(id, spec, {**spec.labels, **(labels or {})}, now_ms(), snapshot)
        return await self._create(record, source)

    async def _source(self, snapshot: str) -> _Source:
        """Returns a snapshot and the box that it was taken of. Raises `SnapshotNotFound`."""
        id = snapshots.box_of(snapshot)
        record = await self._look(id, deleted=True)
        if record is not None:
            with translated(f"snapshot {snapshot} cannot be looked up"):
                for each in await snapshots.kept_in(self._api, self._files, self.name, self.sprite_name(id), record):
                    if each.snapshot.id == snapshot:
                        return _Source(record, each)
        raise SnapshotNotFound(f"there is no snapshot {snapshot}")

    async def snapshot_box(self, id: str, labels: Mapping[str, str]) -> Snapshot:
        async with self._changing(id, f"a snapshot of box {id} cannot be taken") as (record, _):
            return (await to_the_end(self._take(record, labels))).kept.snapshot

    async def _take(self, record: BoxRecord, labels: Mapping[str, str]) -> _Source:
        name = self.sprite_name(record.id)
        kept = await snapshots.kept_in(self._api, self._files, self.name, name, record)
        parent, before = (kept[-1].snapshot.id, kept[-1].total) if kept else (record.snapshot, 0)
        if not kept and parent is not None:
            with contextlib.suppress(SnapshotNotFound):
                before = (await self._source(parent)).kept.total
        total = await guest_setup.measure(self._api, name, record)
        if not record.checkpointed:
            record = replace(record, checkpointed=True)
            await self._write(record)
        snapshot = Snapshot(
            snapshots.new_snapshot_id(record.id),
            self.name,
            self.snapshot_kind,
            Holding.REFERENCE,
            record.id,
            parent,
            max(0, total - before),
            now_ms(),
            dict(labels),
        )
        return _Source(record, await snapshots.take(self._api, self._files, name, snapshot, total))

    async def fork_box(self, id: str, new: str | None, labels: Mapping[str, str]) -> Box:
        new = new or new_id("b")
        async with self._changing(id, f"box {id} cannot be forked") as (record, _):
            self.check(record.spec, new, labels)
            source = await to_the_end(self._take(record, {}))
        try:
            fork = BoxRecord(new, record.spec, {**record.spec.labels, **labels}, now_ms())
            return await self._create(fork, source)
        finally:
            with contextlib.suppress(SnapshotNotFound):
                await to_the_end(self._delete_snapshot(source.kept.snapshot.id))

    async def snapshots(self, labels: Mapping[str, str] | None = None) -> list[Snapshot]:
        records = await self._records()
        with translated("snapshots cannot be listed"):
            found = [
                each.snapshot
                for record in records
                for each in await snapshots.kept_in(
                    self._api, self._files, self.name, self.sprite_name(record.id), record
                )
            ]
        chosen = [each for each in found if matches(each.labels, labels or {})]
        return sorted(chosen, key=lambda each: (each.created_at, each.id))

    async def snapshot(self, id: str) -> Snapshot:
        return (await self._source(id)).kept.snapshot

    async def delete_snapshot(self, id: str) -> int:
        return await to_the_end(self._delete_snapshot(id))

    async def _delete_snapshot(self, id: str) -> int:
        """Delete a checkpoint, and the sprite of a deleted box with its last one."""
        box = snapshots.box_of(id)
        async with self._hold(box).lock:
            source = await self._source(id)
            record, name = source.record, self.sprite_name(box)
            with translated(f"snapshot {id} cannot be deleted"):
                try:
                    await self._api.delete_checkpoint(name, source.kept.checkpoint)
                except ApiProblem as problem:
                    if problem.missing:
                        pass  # another process was quicker
                    elif problem.status in (405, 409):  # a sprite keeps the checkpoint that it runs on
                        record = replace(record, forgotten=(*record.forgotten, id))
                        await self._write(record)
                    else:
                        raise
                rest = await snapshots.kept_in(self._api, self._files, self.name, name, record)
            if record.deleted and not rest:
                return await self._destroy(record)
            return source.kept.snapshot.size

    # --- housekeeping ---

    async def sweep(self, keep: Collection[str] | None = None) -> Swept:
        removed: list[str] = []
        freed = 0
        for record in await self._records():
            held = self._hold(record.id)
            why = self._why_remove(record, keep)
            if held.lock.locked():
                continue
            if record.deleted:
                async with held.lock:
                    gone, bytes_freed = await to_the_end(self._clear(record.id))
                removed += [f"sprite of box {record.id}: its last snapshot is deleted"] if gone else []
                freed += bytes_freed
            elif why is not None and self._why_remove(await self._look(record.id, unfinished=True), keep) is not None:
                freed += await self.remove(record.id)
                removed.append(f"box {record.id}: {why}")
        return Swept(tuple(removed), freed)

    async def _clear(self, id: str) -> tuple[bool, int]:
        """Delete the sprite of a deleted box that has no snapshots any more."""
        record = await self._look(id, deleted=True)
        if record is None or not record.deleted:
            return False, 0
        with translated(f"box {id} cannot be removed"):
            if await snapshots.kept_in(self._api, self._files, self.name, self.sprite_name(id), record):
                return False, 0
        return True, await self._destroy(record)

    def _why_remove(self, record: BoxRecord | None, keep: Collection[str] | None) -> str | None:
        """Asked again before a removal: a list that is out of date shows boxes as they were during their creation."""
        if record is None or record.id in self._creating or record.deleted:
            return None
        if not record.ready:
            return "its creation was interrupted" if now_ms() - record.created_at > _UNFINISHED_MS else None
        return "nobody keeps it" if keep is not None and record.id not in keep else None

    async def check_access(self) -> list[Step]:
        async def authorize() -> str:
            with translated("the API cannot be asked"):
                found = await self._api.list_sprites(self._prefix)
            return f"the token is valid, {len(found)} sprites of this account"

        return await check_account(self.name, self._api.reach, authorize)

    async def diagnose(self, id: str | None = None) -> list[Step]:
        steps = await diagnose_api(self._api, self._prefix)
        if id is not None and all(step.ok for step in steps):
            steps += await diagnose_sprite(self, id)
        return steps


class _RememberingTransport(SpriteTransport):
    """Notes the session of the latest stream, to end it before the next one begins."""

    def __init__(self, socket: object, held: _Held) -> None:
        super().__init__(socket)  # type: ignore[arg-type]
        self._holder = held

    async def read(self) -> bytes:
        data = await super().read()
        if self.session is not None:
            self._holder.session = self.session
        return data
