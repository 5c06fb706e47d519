"""Moves boxes: creates a box of another spec, usually at another provider, with the files of an existing one.

Only the workspace travels, by value. Until the new box is complete and its files are compared, the old one is unchanged
and keeps its key. Then one transaction gives the key to the new box. Whatever process dies, the next sweep finds either
the old box and a new one that was never completed, or the new box and an old one to delete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.records import OWNER_THREAD, BoxState
from holdfast.api.box.spec import BoxSpec, Lifetime
from holdfast.api.errors.boxes import BoxConflict, BoxNotStill, BoxStopped, BoxUnreachable, CreateFailed, Unsupported
from holdfast.api.progress import Progress, Silent
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.labels import BASE, BASE_LOST, KEY, MOVED_FROM, MOVED_KEY
from holdfast.boxes.lifecycle import ASLEEP
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.creation import Creation
from holdfast.boxes.service.idle.hibernation import Hibernation
from holdfast.boxes.service.idle.idleness import Activity
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry
from holdfast.boxes.service.removal import Removal
from holdfast.boxes.service.states import BoxStates
from holdfast.boxes.shielded import to_the_end
from holdfast.boxes.workspace_copy import FolderSummary, copy_folder, copy_notes, summarize, work_folders
from holdfast.time_limit import time_limit

MOVE_SECONDS: Final = 3600.0
"""How long the new box and the copy may take together."""
STILL_SECONDS: Final = 10.0
"""How long processes that are about to end are waited for."""
_FIRST_WAIT: Final = 0.01
_LONGEST_WAIT: Final = 0.5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Moved:
    """The new box, and what was copied to it."""

    row: BoxRow
    source: BoxRow
    """The old box as it was before the move."""
    kept: bool
    """Whether the old box is kept."""
    entries: int
    """Files, folders and links that were copied."""
    bytes: int


def check_movable(row: BoxRow, spec: BoxSpec) -> None:
    """Raises if a box cannot become one of this spec, whatever its provider can do."""
    if row.lifetime is Lifetime.ONE_SHOT:
        raise BoxConflict(
            f"box {row.id} is one-shot: it ends with its first work", hint="copy its files: holdfast box cp"
        )
    if row.spec.volumes and row.provider != spec.provider:
        names = ", ".join(sorted({each.volume for each in row.spec.volumes}))
        raise Unsupported(
            f"box {row.id} mounts volumes of {row.provider}, which stay there: {names}",
            hint="copy what you need of them into the workspace, and create a box without them",
        )
    if "/" in (row.spec.workdir, spec.workdir):
        raise Unsupported(
            f"the workdir of box {row.id} is /, and only a folder can be moved", hint="copy its files: holdfast box cp"
        )


class Move:
    """Moves the boxes of one service."""

    def __init__(
        self,
        registry: Registry,
        providers: Providers,
        leases: Leases,
        activity: Activity,
        states: BoxStates,
        hibernation: Hibernation,
        removal: Removal,
        creation: Creation,
    ) -> None:
        self._registry = registry
        self._providers = providers
        self._leases = leases
        self._activity = activity
        self._states = states
        self._hibernation = hibernation
        self._removal = removal
        self._creation = creation

    async def move(
        self,
        id: str,
        change: Callable[[BoxSpec], BoxSpec],
        *,
        stop: bool = False,
        keep: bool = False,
        progress: Progress | None = None,
    ) -> Moved:
        told = Silent() if progress is None else progress
        row = await self._checked(id, change, stop=stop)
        await self._registry.join()
        if row.key is None:
            return await self._move(row, change(row.spec), stop=stop, keep=keep, progress=told)
        async with self._leases.turn_soon(f"key/{row.key}"):  # whoever asks for the key meanwhile waits for the new box
            row = await self._checked(id, change, stop=stop)
            return await self._move(row, change(row.spec), stop=stop, keep=keep, progress=told)

    async def check(self, id: str, change: Callable[[BoxSpec], BoxSpec]) -> None:
        """Raises if the box cannot be moved: its target lacks something, or processes run in it. Changes nothing."""
        row = await self._checked(id, change, stop=False)
        if row.state is BoxState.RUNNING:
            with suppress(BoxStopped):  # then nothing runs in it
                async with await self._states.attach(row) as box:
                    await self._check_still(row, box)

    async def _checked(self, id: str, change: Callable[[BoxSpec], BoxSpec], *, stop: bool) -> BoxRow:
        row = await self._registry.get_live(id)
        self._registry.check_here(row)
        spec = change(row.spec)
        self._providers.for_spec(spec)
        check_movable(row, spec)
        if stop:
            require(row.provider, self._providers.named(row.provider).capabilities, Capability.STOP)
        return row

    async def _move(self, row: BoxRow, spec: BoxSpec, *, stop: bool, keep: bool, progress: Progress) -> Moved:
        async with self._held_still(row, stop=stop) as (source, box):
            new = self._new_row(source, spec)
            with self._registry.at_work(new.id):
                files = await self._fill(new, box, progress)
                old, row = await self._commit(source, new, keep=keep)
                await self._retire(old, box, keep=keep, progress=progress)
        entries, size = sum(each.entries for each in files), sum(each.bytes for each in files)
        return Moved(self._registry.remember(row), source, keep, entries, size)

    # --- the old box ---

    @asynccontextmanager
    async def _held_still(self, row: BoxRow, *, stop: bool) -> AsyncIterator[tuple[BoxRow, Box]]:
        """Yields a running box that no other caller can use. If the body fails, the box can be used as before."""
        was = row.state
        async with self._leases.alone(f"box/{row.id}"):
            row = await self._awake(row)
            with self._registry.at_work(row.id):
                row = await self._registry.move_unused(row, BoxState.MOVING)
        with self._registry.at_work(row.id):
            try:
                if self._activity.is_working(row.id):
                    raise BoxConflict(
                        f"box {row.id} is in use", hint="wait until its commands have ended, and try again"
                    )
                async with await self._states.attach(row) as box:
                    if stop and (await box.metrics()).processes:
                        await box.stop()
                        await box.start()
                    await self._check_still(row, box)
                    yield row, box
            except BaseException:
                await to_the_end(self._release(row.id, was))
                raise

    async def _awake(self, row: BoxRow) -> BoxRow:
        if await self._registry.is_being_changed(row):
            raise BoxConflict(
                f"box {row.id} is {row.state}", hint="another caller is changing it: try again in a moment"
            )
        row = await self._states.settle_for_use(row)
        if row.state in ASLEEP:
            return await self._hibernation.rouse(row)
        return row if row.state is BoxState.RUNNING else await self._states.start(row)

    async def _check_still(self, row: BoxRow, box: Box) -> None:
        wait, waited = _FIRST_WAIT, 0.0
        while running := (await box.metrics()).processes:  # the end of a run is on its thread before its runner exits
            if waited >= STILL_SECONDS:
                break
            await asyncio.sleep(wait)
            wait, waited = min(wait * 2, _LONGEST_WAIT), waited + wait
        if running:
            what = "a process runs" if running == 1 else f"{running} processes run"
            raise BoxConflict(
                f"{what} in box {row.id}, and a move ends them",
                hint=f"wait for their end, or stop the box: holdfast box stop {row.id}",
            )

    async def _release(self, id: str, was: BoxState) -> None:
        """Makes a box that was not moved usable again. The sweep repeats what fails here."""
        row = await self._registry.find(id)
        if row is None or row.state is not BoxState.MOVING:
            return
        row = await self._states.settle(row)
        if was is BoxState.STOPPED and row.state is BoxState.RUNNING:
            await self._states.switch(row, BoxState.STOPPING, BoxState.STOPPED, lambda box: box.stop())

    async def _retire(self, old: BoxRow, box: Box, *, keep: bool, progress: Progress) -> None:
        """Deletes or stops the old box. The move is done: the sweep repeats what fails here."""
        progress.begin("old box", old.id)
        try:
            if not keep:
                await self._removal.remove(old, old.ended_why or "moved")
            elif old.state is BoxState.STOPPING:
                await box.stop()
                await self._registry.move(old, BoxState.STOPPED)
        except Exception as error:
            log.warning("box %s was moved, and the next sweep will end the old one: %s", old.id, error)
            progress.end("will be deleted later" if not keep else "kept")
        else:
            progress.end("kept" if keep else "deleted")

    # --- the new box ---

    def _new_row(self, source: BoxRow, spec: BoxSpec) -> BoxRow:
        """Returns the row of the new box. It gets the key only when it is complete."""
        row = self._registry.new_row(spec, source.owner)
        key = {} if source.key is None else {MOVED_KEY: source.key}
        base = {name: source.labels[name] for name in (BASE, BASE_LOST) if name in source.labels}
        return replace(row, labels={**row.labels, MOVED_FROM: source.id, **key, **base})

    async def _fill(self, new: BoxRow, source: Box, progress: Progress) -> list[FolderSummary]:
        """Creates the new box with the workspace of the old one, and compares them. A failure leaves no new box."""
        provider = self._providers.named(new.provider)
        found: list[FolderSummary] = []

        async def make() -> Box:
            progress.begin("box", f"{new.id}  {new.provider}")
            box = await provider.create(new.spec, id=new.id, labels=new.labels)
            try:
                progress.end()
                found.extend(await self._copied(source, box, progress))
            except BaseException:
                await box.close()
                raise
            return box

        limit = time_limit(MOVE_SECONDS)
        try:
            async with limit:
                await (await self._creation.made(new, make)).close()
        except TimeoutError:
            if not limit.expired():
                raise
            raise BoxUnreachable(
                f"box {source.id} was not moved within {MOVE_SECONDS:g} s", hint="it is unchanged: try again"
            ) from None
        return found

    async def _copied(self, source: Box, target: Box, progress: Progress) -> list[FolderSummary]:
        found = []
        for folder in await work_folders(source):
            before = await summarize(source, folder)
            progress.begin("files", folder, total=before.bytes)
            to = target.spec.workdir if folder == source.spec.workdir else folder
            after = await copy_folder(source, folder, target, to, before, progress.advance)
            if after.digest != before.digest:
                if (await summarize(source, folder)).digest != before.digest:
                    raise BoxNotStill(f"files in {folder} of box {source.id} changed while they were copied")
                raise CreateFailed(
                    f"the files in {folder} are not the same in the new box: {before.entries} entries with"
                    f" {before.bytes} bytes became {after.entries} with {after.bytes}",
                    hint=f"the new box was deleted, and box {source.id} is unchanged",
                )
            progress.end(f"{after.entries} {'entry' if after.entries == 1 else 'entries'}, compared")
            found.append(after)
        await copy_notes(source, target)
        return found

    # --- the moment of the move ---

    async def _commit(self, source: BoxRow, new: BoxRow, *, keep: bool) -> tuple[BoxRow, BoxRow]:
        """Gives the key to the new box and takes it from the old one, in one transaction. Returns both rows."""
        now = self._registry.clock()
        old = self._kept(source) if keep else replace(source, state=BoxState.DELETING)
        why = f"moved to box {new.id} of {new.provider}"
        old = replace(old, key=None, changed_at=now, ended_why=None if keep else why)
        labels = dict(new.labels) if source.key is None else {**new.labels, KEY: source.key}
        row = replace(
            new,
            state=BoxState.RUNNING,
            key=source.key,
            labels=labels,
            changed_at=now,
            last_active_at=now,
            holder=None,
        )
        try:
            await to_the_end(self._registry.rows.swap_all(((source, old), (new, row))))
        except BaseException as error:
            # The transaction may have happened although this failed, for example because it was cancelled.
            current = await to_the_end(self._registry.find(new.id))
            if current is not None and current.state is BoxState.CREATING:
                await to_the_end(self._creation.undo(new, error))
            raise
        return old, row

    def _kept(self, source: BoxRow) -> BoxRow:
        """Returns the row of an old box that is kept: nothing leads to it but its id."""
        stops = Capability.STOP in self._providers.named(source.provider).capabilities
        state = BoxState.STOPPING if stops else BoxState.RUNNING
        labels = {name: value for name, value in source.labels.items() if name not in (KEY, OWNER_THREAD)}
        return replace(source, state=state, labels=labels, holder=source.holder if stops else None)
