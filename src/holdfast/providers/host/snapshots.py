"""Snapshots of boxes on this machine. A snapshot is a list of layers, which boxes and snapshots share."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from typing import Any, Final

from holdfast.api.box.snapshots import Snapshot
from holdfast.api.errors.boxes import BoxStopped, BoxUnreachable, SnapshotNotFound, WrongSnapshot
from holdfast.boxes.labels import HIBERNATION, matches
from holdfast.providers.guest_protocol import GuestRefused, number_in
from holdfast.providers.host.disk import layer_copy, layers
from holdfast.providers.host.disk.data_dir import BoxRecord, DataDir, measure, updated
from holdfast.providers.host.disk.trash import Trash
from holdfast.providers.host.guest_client import GuestClient
from holdfast.providers.host.power import BoxPower
from holdfast.providers.host.sandbox import Sandbox
from holdfast.providers.pipes import Pipe, on_own_thread

log = logging.getLogger(__name__)

_COLLECT_TRIES: Final = 50
_COLLECT_PAUSE: Final = 0.02


class Manifests:
    """The manifests of one data directory. A manifest is written once, so each is read once as long as its file stays
    the same: a thread may have hundreds of them.
    """

    def __init__(self, data_dir: DataDir) -> None:
        self._data_dir = data_dir
        self._known: Mapping[str, tuple[tuple[int, ...], layers.Manifest]] = {}
        """By the name of the file, with what tells whether it is still the same file."""

    def all(self) -> list[layers.Manifest]:
        """Returns all that can be read, oldest first. Blocks."""
        known = self._known
        found: dict[str, tuple[tuple[int, ...], layers.Manifest]] = {}
        with os.scandir(self._data_dir.snapshots) as entries:
            files = {each.name: each for each in entries if _is_manifest(each.name)}
        for name, file in sorted(files.items()):
            with contextlib.suppress(SnapshotNotFound, WrongSnapshot, FileNotFoundError):
                status = file.stat(follow_symlinks=False)
                same = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)
                before = known.get(name)
                if before is None or before[0] != same:
                    before = (same, layers.read_manifest(self._data_dir, name.removesuffix(".json")))
                found[name] = before
        self._known = found
        return [manifest for _, manifest in found.values()]


def _is_manifest(name: str) -> bool:
    return name.endswith(".json") and not name.startswith(".")


class SnapshotStore:
    """The snapshots of one data directory, and the layers that they consist of."""

    def __init__(self, sandbox: Sandbox, power: BoxPower, trash: Trash) -> None:
        self._sandbox = sandbox
        self._data_dir = sandbox.data_dir
        self._workers = sandbox.workers
        self._power = power
        self._trash = trash
        self._manifests = Manifests(sandbox.data_dir)

    # --- taking ---

    async def take(self, record: BoxRecord, labels: Mapping[str, str]) -> Snapshot:
        """Take a snapshot of a locked box."""
        with self._data_dir.layers_kept():
            # A box that hibernates often would keep everything that it ever overwrote: a layer each time.
            deepest = layers.DEEPEST_ASLEEP if HIBERNATION in labels else layers.DEEPEST
            record, own_layers = await self.freeze(record, deepest)
            snapshot = await self._workers.on_disk(layers.write_snapshot, self._data_dir, record, own_layers, labels)
            self._data_dir.write(updated(record, head=snapshot.id))
        return snapshot

    async def cost(self, record: BoxRecord) -> int:
        """Returns how many bytes a snapshot would copy now: none if nothing runs in the box."""
        guest = self._sandbox.guest(record.id)
        if not guest.alive() or await _is_idle(guest):
            return 0
        return await self._workers.on_disk(measure, self._data_dir.box(record.id) / "upper")

    async def freeze(self, record: BoxRecord, deepest: int = layers.DEEPEST) -> tuple[BoxRecord, tuple[str, ...]]:
        """Returns the record of a locked box, and layers with everything that the box holds now.

        The caller keeps layers from removal (`DataDir.layers_kept`) until something refers to these.
        """
        data_dir = self._data_dir
        guest = self._sandbox.guest(record.id)
        running = await self._power.is_up(guest)
        if not running:
            record = self._sandbox.recover(record)
        if not layers.changed(data_dir, record):
            return record, record.layers
        # Files become a layer as they are only if no process can write to them. Otherwise they are copied.
        with self._sandbox.gates.closed(record.id) if running else contextlib.nullcontext():
            frozen = await self._freeze_top(record, guest, deepest, running)
        if frozen is None:
            return record, (*record.layers, await self._copy_top(record, running))
        return frozen, frozen.layers

    async def _freeze_top(self, record: BoxRecord, guest: GuestClient, deepest: int, running: bool) -> BoxRecord | None:
        """Make what the box has written its topmost layer. Returns None if something may still write to it.

        A box that runs is restarted: nothing runs in it, and requests wait at its gate.
        """
        data_dir = self._data_dir
        if running:
            sealed = await _is_idle(guest) and await self._sandbox.seal(guest)
        else:
            sealed = self._sandbox.is_sealed(record.id)
        if not sealed:
            return None
        had_guest_api = running and self._sandbox.has_guest_api(record)
        if running:
            await self._sandbox.end(guest)
        record = layers.freeze_top(data_dir, record)
        if len(record.layers) > deepest:
            try:
                record = await self._workers.on_disk(layers.merge, data_dir, record, deepest)
                data_dir.write(record)
            except (
                OSError,
                RecursionError,
            ) as error:  # for example, folders deeper than we can walk: it stays unmerged
                log.warning("cannot merge the layers of box %s: %s", record.id, error)
        if running:
            await self._power.bring_up(record)
        if had_guest_api:
            # A run may be about to start here: it has opened the guest API, and not yet started its runner.
            await self._sandbox.open_guest_api(self._sandbox.guest(record.id), record)
        return record

    async def _copy_top(self, record: BoxRecord, running: bool) -> str:
        """Copy what a box has written into a new layer. If it runs, its processes are frozen meanwhile."""

        async def copy(source: int, target: int) -> dict[str, Any]:
            async with self._sandbox.frozen(record.id) if running else contextlib.nullcontext():
                return await self._sandbox.copy_files(source, target)

        return await layer_copy.copy_top(self._data_dir, record.id, copy, self._workers.on_disk, running=running)

    # --- finding and deleting ---

    async def all(self, labels: Mapping[str, str]) -> list[Snapshot]:
        found = await self._workers.on_disk(self._manifests.all)
        return [each.snapshot for each in found if matches(each.snapshot.labels, labels)]

    def get(self, id: str) -> Snapshot:
        return layers.read_manifest(self._data_dir, id).snapshot

    async def delete(self, id: str) -> int:
        layers.forget_snapshot(self._data_dir, id)
        return await self.collect()

    async def collect(self) -> int:
        """Delete layers that nothing refers to. Returns the bytes freed.

        Gives up if snapshots are being taken all the time: a later sweep deletes the layers.
        """
        for _ in range(_COLLECT_TRIES):
            moved = await self._workers.on_disk(layers.collect, self._data_dir)
            if moved is not None:
                return await self._trash.remove(moved)
            await asyncio.sleep(_COLLECT_PAUSE)
        return 0

    # --- moving between machines ---

    async def export(self, id: str) -> AsyncGenerator[bytes]:
        layers.read_manifest(self._data_dir, id)
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = Pipe(read)
        pipe.widen()

        def export() -> None:
            with contextlib.suppress(BrokenPipeError), os.fdopen(write, "wb") as out:
                layers.export(self._data_dir, id, out)

        exporting = on_own_thread(export)
        try:
            while data := await pipe.read():
                yield data
        finally:
            pipe.close()
            await exporting

    async def import_(self, stream: AsyncIterable[bytes]) -> Snapshot:
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = Pipe(write)
        pipe.widen()

        def take() -> Snapshot:
            with io.open(read, "rb", buffering=1 << 18) as source:  # noqa: UP020
                return layers.import_(self._data_dir, source)

        taking = on_own_thread(take)
        try:
            with contextlib.suppress(BrokenPipeError):  # the import refused the stream: awaiting it raises the reason
                async for piece in stream:
                    await pipe.write(piece)
            pipe.close()
            return await asyncio.shield(taking)
        finally:
            pipe.close()
            await asyncio.gather(taking, return_exceptions=True)


async def _is_idle(guest: GuestClient) -> bool:
    try:
        answer = await guest.ask({"op": "activity"})
    except (BoxStopped, BoxUnreachable, GuestRefused):
        return False
    return number_in(answer, "processes") == 0 and number_in(answer, "connections") == 0
