"""Setups: the files of a box after the setup commands of an environment, kept as a snapshot.

A setup is found by a key of everything that it depends on: the image, the commands, their inputs, the network. Runs
with the same key start from the same snapshot. Whoever comes first builds it, and the others wait for that build. A
killed build leaves a box, which the next server or the next build deletes; a snapshot exists whole, or not at all.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.environments import FILE_NAME
from holdfast.api.errors.boxes import (
    BoxError,
    CannotExecute,
    ExecTimeout,
    ImageNotFound,
    SnapshotInUse,
    SnapshotNotFound,
)
from holdfast.api.errors.environments import SetupFailed
from holdfast.api.progress import Progress, Silent
from holdfast.api.run.repositories import ClonedRepository
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.labels import TENANT
from holdfast.boxes.rows import BoxFilter
from holdfast.boxes.service.boxes import Boxes
from holdfast.environments.inputs import Inputs, pick_folders
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

SETUP: Final = "environment-setup"
"""Label of a setup's snapshot, and of the box that it is built in: its key."""
SETUP_OF: Final = "environment-setup-of"
"""Label: the environment."""
BUILDING: Final = "environment-setup-box"
"""Label of every box that a setup is built in."""
_FORMAT: Final = 1
"""Version of how commands are run. Another version does not use the snapshots of this one."""
_IDLE_SECONDS: Final = 900
"""If no server comes back after a kill, the provider's sweep deletes the box after this idle time."""
_COMMAND_SECONDS: Final = 3600.0
_TURN_SECONDS: Final = 2 * 3600.0
_OUTPUT: Final = 16 * 1024
_SHOWN: Final = 2000
_KEPT: Final = 3
_KEPT_OF_FILES: Final = 20
_PAGE: Final = 100
_PIECE: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class WantedSetup:
    group: str
    """The environment. Its older setups are deleted when it has newer ones."""
    commands: tuple[str, ...]
    spec: BoxSpec
    """The box that the run wants."""
    inputs: Inputs
    repositories: tuple[ClonedRepository, ...] = ()
    """Further repositories that the workspace has. The commands see them too."""
    workspace: Path | None = None
    """The archive of the workspace."""


@dataclass(frozen=True, slots=True)
class BuiltSetup:
    snapshot: str
    built: bool
    """Whether the commands were run for this request, not earlier."""


@dataclass(slots=True)
class _Build:
    """A build in progress, and who waits for it."""

    task: asyncio.Task[BuiltSetup]
    progress: _SharedProgress
    waiting: int = 0


class Setups:
    """The setups of one server. Owns the builds in progress from `start` to `close`, but not the boxes."""

    def __init__(self, boxes: Boxes, network_ready: Callable[[], Awaitable[None]]) -> None:
        self._boxes = boxes
        self._network_ready = network_ready
        self._builds: dict[str, _Build] = {}

    async def start(self, *, exclusive: bool) -> None:
        """Delete the boxes of builds that a killed server left. Only if no other server can be at a build."""
        if exclusive:
            await self._delete_boxes({BUILDING: "1"})

    async def close(self) -> None:
        tasks = [each.task for each in self._builds.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def find(self, wanted: WantedSetup) -> str | None:
        """Returns the snapshot of a setup that was built before, or None."""
        found = await self._find(wanted, await self._key(wanted))
        return None if found is None else found.id

    async def ensure(self, wanted: WantedSetup, progress: Progress | None = None, *, again: bool = False) -> BuiltSetup:
        """Returns the snapshot of a setup. Builds it if there is none. Raises `SetupFailed`."""
        provider = self._boxes.provider(wanted.spec.provider)
        require(provider.name, provider.capabilities, Capability.SNAPSHOTS)
        key = await self._key(wanted)
        if not again and (found := await self._find(wanted, key)) is not None:
            return BuiltSetup(found.id, built=False)
        build = self._builds.get(key)
        if build is None:
            shared = _SharedProgress()
            task = asyncio.create_task(self._build(wanted, key, shared, again), name=f"setup of {wanted.group}")
            build = self._builds[key] = _Build(task, shared)
            task.add_done_callback(lambda _: self._builds.pop(key, None))
        with build.progress.shown_to(progress or Silent()):
            build.waiting += 1
            try:
                return await asyncio.shield(build.task)
            finally:
                build.waiting -= 1
                if not build.waiting and not build.task.done():
                    build.task.cancel()  # nobody wants it any more
                    await asyncio.gather(build.task, return_exceptions=True)

    async def forget(self, group: str) -> None:
        """Delete the setups of an environment. Boxes that started from them keep their files."""
        for snapshot in await self._boxes.snapshots():
            if snapshot.labels.get(SETUP_OF) == group:
                await self._delete(snapshot)

    # --- building ---

    async def _build(self, wanted: WantedSetup, key: str, progress: Progress, again: bool) -> BuiltSetup:
        await self._boxes.join()
        limit = time_limit(_TURN_SECONDS)
        async with limit, self._boxes.leases.turn(f"environment-setup/{key}"):
            before = await self._find(wanted, key)
            if before is not None and not again:  # another server was first
                return BuiltSetup(before.id, built=False)
            await self._delete_boxes({BUILDING: "1", SETUP: key})
            made = await self._run(wanted, key, progress)
            if before is not None:
                await self._delete(before)
        await self._collect(wanted, made)
        return BuiltSetup(made.id, built=True)

    async def _run(self, wanted: WantedSetup, key: str, progress: Progress) -> Snapshot:
        spec = replace(
            wanted.spec,
            lifetime=Lifetime.EPHEMERAL,
            idle_seconds=_IDLE_SECONDS,
            on_idle=None,
            labels={BUILDING: "1", SETUP: key, SETUP_OF: wanted.group},
        )
        if spec.network.mode is not Network.NONE:
            await self._network_ready()
        row = await self._boxes.create(spec)
        try:
            with self._boxes.using(row.id):
                async with await self._boxes.open(row.id) as box:
                    await box.files.mkdir(spec.workdir)
                    if wanted.inputs.archive:
                        await box.files.upload_tar(_pieces(wanted.inputs.archive), spec.workdir)
                    if wanted.repositories:
                        await self._put_repositories(box, wanted)
                    for number, command in enumerate(wanted.commands):
                        progress.begin("setup", f"{number + 1} of {len(wanted.commands)}: {_short(command)}")
                        await _execute(box, command, spec, progress)
                        progress.end()
            progress.begin("keep", "the files of the setup")
            if Capability.STOP in self._boxes.provider(row.provider).capabilities:
                # Ends what the commands left running. The files of a stopped box need not be copied.
                await self._boxes.stop(row.id)
            made = await self._boxes.snapshot(row.id, {SETUP: key, SETUP_OF: wanted.group})
            progress.end()
            return made
        finally:
            await asyncio.shield(self._delete_box(row.id))

    async def _put_repositories(self, box: Box, wanted: WantedSetup) -> None:
        paths = [each.path for each in wanted.repositories]
        with tempfile.TemporaryFile() as archive:
            await asyncio.to_thread(pick_folders, wanted.workspace, paths, archive)
            archive.seek(0)

            async def pieces() -> AsyncIterator[bytes]:
                while piece := await asyncio.to_thread(archive.read, _PIECE):
                    yield piece

            await box.files.upload_tar(pieces(), wanted.spec.workdir)

    async def _delete_box(self, id: str) -> None:
        try:
            await self._boxes.delete(id)
        except BoxError as error:
            log.warning("box %s of a setup cannot be deleted now, so it is deleted when it is idle: %s", id, error)

    async def _delete_boxes(self, labels: dict[str, str]) -> None:
        """Delete the boxes that killed builds left."""
        cursor: str | None = None
        while True:
            page = await self._boxes.list(BoxFilter(labels=labels, limit=_PAGE, after=cursor))
            for row in page.rows:
                await self._delete_box(row.id)
            cursor = page.next_cursor
            if cursor is None:
                return

    # --- keeping ---

    async def _key(self, wanted: WantedSetup) -> str:
        spec = wanted.spec
        inputs: list[Any] = [
            _FORMAT,
            spec.provider,
            await self._image_of(spec),
            spec.workdir,
            spec.network.to_json(),
            list(wanted.commands),
            wanted.inputs.digest,
        ]
        if wanted.repositories:
            inputs.append([[each.path, each.commit] for each in wanted.repositories])
        return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()

    async def _image_of(self, spec: BoxSpec) -> str | None:
        """Returns what tells the image from others: its digest, or its name if the provider finds it by itself."""
        images = self._boxes.provider(spec.provider).images
        if spec.image is None or images is None:
            return spec.image
        with suppress(ImageNotFound):
            return (await images.get(spec.image)).digest
        return spec.image

    async def _find(self, wanted: WantedSetup, key: str) -> Snapshot | None:
        found = await self._of({SETUP: key}, wanted.spec.provider)
        return found[-1] if found else None

    async def _of(self, labels: dict[str, str], provider: str) -> list[Snapshot]:
        """Returns snapshots of a provider, oldest first."""
        return await self._boxes.provider(provider).snapshots({**labels, TENANT: self._boxes.tenant})

    async def _collect(self, wanted: WantedSetup, newest: Snapshot) -> None:
        """Delete older setups of the environment, but the latest ones."""
        found = await self._of({SETUP_OF: wanted.group}, wanted.spec.provider)
        most = _KEPT_OF_FILES if wanted.group == FILE_NAME else _KEPT
        for snapshot in found[:-most]:
            if snapshot.id != newest.id:
                await self._delete(snapshot)

    async def _delete(self, snapshot: Snapshot) -> None:
        with suppress(SnapshotNotFound, SnapshotInUse):
            await self._boxes.provider(snapshot.provider).delete_snapshot(snapshot.id)


async def _execute(box: Box, command: str, spec: BoxSpec, progress: Progress) -> None:
    output = bytearray()

    def take(data: bytes) -> None:
        output.extend(data)
        del output[:-_OUTPUT]
        progress.output(data)

    hint = "correct the command"
    if spec.network.mode is Network.NONE:
        hint += ', or give it network access, if it needs that: egress = ["default"] has the package registries'
    shown = _short(command)
    try:
        done = await box.exec(
            ("/bin/sh", "-e", "-c", command),
            cwd=spec.workdir,
            timeout=_COMMAND_SECONDS,
            on_stdout=take,
            on_stderr=take,
        )
    except ExecTimeout:
        raise SetupFailed(
            f"the setup command did not end within {_COMMAND_SECONDS / 60:.0f} minutes: {shown}{_end_of(output)}",
            hint=hint,
        ) from None
    except CannotExecute as error:
        raise SetupFailed(f"the setup command cannot be run: {shown}: {error.message}", hint=hint) from None
    if not done.ok:
        raise SetupFailed(f"the setup command ended with {done.exit_code}: {shown}{_end_of(output)}", hint=hint)


def _end_of(output: bytearray) -> str:
    text = output[-_SHOWN:].decode(errors="replace").strip()
    return f"\n{text}" if text else ""


def _short(command: str) -> str:
    line = " ".join(command.split())
    return line if len(line) <= 120 else f"{line[:119]}…"


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), _PIECE):
        yield data[start : start + _PIECE]


@dataclass(slots=True)
class _SharedProgress:
    """Tells several listeners about one build."""

    listeners: list[Progress] = field(default_factory=list)

    def shown_to(self, listener: Progress) -> _Listening:
        return _Listening(self.listeners, listener)

    def begin(self, step: str, detail: str = "", *, total: int | None = None) -> None:
        for each in self.listeners:
            each.begin(step, detail, total=total)

    def advance(self, amount: int) -> None:
        for each in self.listeners:
            each.advance(amount)

    def output(self, data: bytes) -> None:
        for each in self.listeners:
            each.output(data)

    def end(self, summary: str = "") -> None:
        for each in self.listeners:
            each.end(summary)

    def skip(self, step: str, detail: str = "") -> None:
        for each in self.listeners:
            each.skip(step, detail)


@dataclass(slots=True)
class _Listening:
    listeners: list[Progress]
    listener: Progress

    def __enter__(self) -> None:
        self.listeners.append(self.listener)

    def __exit__(self, *_: object) -> None:
        self.listeners.remove(self.listener)
