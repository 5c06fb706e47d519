"""Rewinds a thread to the end of a turn, in place. What came after stays on the thread, but leaves the conversation.

The files before are saved first, then one entry says everything: where the conversation ends now, which files belong to
it, and how to undo that. The box follows the entry. If the server dies in between, the next use of the thread replaces
the box.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final
from weakref import WeakValueDictionary

from holdfast.api.box.records import Owner
from holdfast.api.box.spec import Lifetime
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.runs import NoCheckpoint, NothingToUndo, ThreadBusy
from holdfast.api.thread.entries import Entry
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.labels import BASE
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.checkpoint.checkpoints import Checkpoints
from holdfast.runs.checkpoint.rules import rewound_id
from holdfast.runs.checkpoint.turns import SavedTurn, Turns
from holdfast.runs.errors import thread_busy
from holdfast.runs.launch.plan import LaunchPlanner, next_options
from holdfast.runs.launch.steps import Launcher
from holdfast.runs.run_log import RunLog
from holdfast.threads.checkpoints import Checkpoint, Files, Undo
from holdfast.threads.lineage import rewound
from holdfast.threads.rows import ThreadRow
from holdfast.threads.run_events import ThreadRuns

log = logging.getLogger(__name__)

_TRIAL_SECONDS: Final = 60
"""If the server dies, the box of a trial is removed after this time."""


@dataclass(frozen=True, slots=True)
class Rewinding:
    """A thread after its rewind."""

    row: ThreadRow
    box: BoxRow | None
    """None if the thread has gone on since, and has no box now."""


class Rewinds:
    """Rewinds threads. A lock for each thread makes concurrent requests with one key one rewind."""

    def __init__(
        self,
        log: RunLog,
        boxes: Boxes,
        checkpoints: Checkpoints,
        turns: Turns,
        planner: LaunchPlanner,
        launcher: Launcher,
        *,
        reconcile: Callable[..., Awaitable[ThreadRow]],
        open_tasks: Callable[[str], Awaitable[list[ThreadRow]]],
    ) -> None:
        """`open_tasks` returns the tasks of a thread that have not ended: some work in its box."""
        self._open_tasks = open_tasks
        self._log = log
        self._boxes = boxes
        self._checkpoints = checkpoints
        self._turns = turns
        self._planner = planner
        self._launcher = launcher
        self._reconcile = reconcile
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By thread."""

    async def rewind(self, thread: str, at: str | None = None, *, key: str | None = None) -> Rewinding:
        """Rewind a thread to a turn, an entry, or the end of its latest turn. Raises `ThreadBusy`.

        A request with the key of an earlier one changes nothing, and returns the thread as it is now.
        """
        id = rewound_id(thread, key)
        async with self._locks.setdefault(thread, asyncio.Lock()):
            if (done := await self.done(thread, key)) is not None:
                return done
            await self._ready(thread)
            return await self._go(thread, await self._turns.find(thread, at), id, undoes=False)

    async def undo(self, thread: str, *, key: str | None = None) -> Rewinding:
        """Undo the latest rewind of a thread: the conversation and the files are as they were before it. For `key` see
        `rewind`.
        """
        id = rewound_id(thread, key)
        async with self._locks.setdefault(thread, asyncio.Lock()):
            if (done := await self.done(thread, key)) is not None:
                return done
            return await self._go(thread, await self._before_rewind(thread), id, undoes=True)

    async def done(self, thread: str, key: str | None) -> Rewinding | None:
        """Returns the thread as it is now if a request with this key has rewound it."""
        return None if key is None else await self._done(thread, rewound_id(thread, key))

    async def _done(self, thread: str, id: str) -> Rewinding | None:
        """Returns the thread if the rewind with this id is on it."""
        if await self._log.position_after(thread, id) is None:
            return None
        row = await self._reconcile(thread, force=True)
        if row.runs.live is None and row.lineage.base is not None and row.lineage.base.id == id:
            return Rewinding(row, await self._box(row))
        return Rewinding(row, await self._planner.box_of(thread))

    async def _before_rewind(self, thread: str) -> SavedTurn:
        row = await self._ready(thread)
        undo = row.lineage.undo
        if undo is None:
            raise NothingToUndo(
                f"thread {thread} has no rewind that can be undone",
                hint=f"see its turns: holdfast thread turns {thread}",
            )
        run = (await self._log.runs_at(thread, undo.offset)).latest
        return SavedTurn(undo.turn, "" if run is None else run.run, undo.offset, undo.files)

    async def finish(self, thread: str) -> None:
        """Give a thread the box that belongs to its conversation, if a server died before it could."""
        row = await self._log.row(thread)
        base, box = row.lineage.base, await self._planner.box_of(thread)
        if base is not None and box is not None and box.labels.get(BASE) != base.id and row.runs.live is None:
            await self._box(row)

    async def _ready(self, thread: str) -> ThreadRow:
        row = await self._reconcile(thread, force=True)
        if row.runs.live is not None:
            raise thread_busy(thread, row.runs.live.run)
        for task in await self._open_tasks(thread):
            if task.runs.live is not None and task.runs.live.options.get("shares") == thread:
                raise ThreadBusy(
                    f"task {task.id} works in the box of thread {thread}",
                    hint=f"wait for it: holdfast thread wait {thread}",
                )
        await self._checkpoints.settle(thread)
        await self.finish(thread)
        return await self._log.row(thread)

    async def _go(self, thread: str, turn: SavedTurn, id: str, *, undoes: bool) -> Rewinding:
        row = await self._log.row(thread)
        then = _settled(await self._log.runs_at(thread, turn.offset), turn, self._log.clock())
        await self._try(row, then, turn.files)
        undo = await self._save(row, id)
        expected = None if row.runs.latest is None else row.runs.latest.run

        def compose(epoch: int, runs: ThreadRuns) -> list[Entry]:
            if runs.live is not None:
                raise thread_busy(thread, runs.live.run)
            if runs.latest is None or runs.latest.run != expected:
                raise ThreadBusy(f"another request has changed thread {thread} meanwhile", hint="try again")
            payload = rewound(
                turn=turn.number,
                offset=turn.offset,
                until=row.folded,
                files=turn.files,
                runs=then,
                undo=undo,
                undoes=undoes,
            )
            return [self._log.entry(payload, id=id)]

        await self._log.claim(thread, compose)
        row = await self._log.row(thread)
        return Rewinding(row, await self._box(row))

    async def _try(self, row: ThreadRow, then: ThreadRuns, files: Files) -> None:
        """Restore the files into a box and delete it. Raises if they are damaged, before anything has changed."""
        agent = None if then.latest is None else then.latest.agent
        options = self._planner.fit(next_options(then, agent, None))
        spec = replace(
            options.box,
            provider=files.provider,
            image=files.image,
            lifetime=Lifetime.EPHEMERAL,
            idle_seconds=_TRIAL_SECONDS,
            on_idle=None,
        )
        trial = await self._boxes.restore(files.snapshot, spec, owner=Owner())
        await self._boxes.delete(trial.id)

    async def _save(self, row: ThreadRow, purpose: str) -> Undo | None:
        """Save the files of now. Without a box, those of the latest turn are taken, if there are any."""
        latest = row.runs.latest
        if latest is None:
            return None
        box = await self._planner.box_of(row.id)
        if box is not None:
            if Capability.SNAPSHOTS not in self._boxes.provider(box.provider).capabilities:
                raise NoCheckpoint(
                    f"provider {box.provider} takes no snapshots, so the files of thread {row.id} would be lost",
                    hint=f"fork the thread instead: holdfast fork {row.id}",
                )
            snapshot = await self._boxes.snapshot(box.id, checkpoint=purpose)
            return Undo(latest.turn, row.folded, Files(snapshot.id, box.provider, box.spec.image))
        if latest.checkpoint is not None and latest.checkpoint.files is not None:
            return Undo(latest.turn, row.folded, latest.checkpoint.files)
        return None

    async def _box(self, row: ThreadRow) -> BoxRow:
        base = row.lineage.base
        assert base is not None
        agent = None if row.runs.latest is None else row.runs.latest.agent
        options = self._planner.fit(next_options(row.runs, agent, None, None, base))
        try:
            return (await self._launcher.start_from(row.id, options.box, base)).row
        except BoxError as error:
            log.warning("thread %s was rewound, but has no box yet: %s", row.id, error)
            raise


def _settled(then: ThreadRuns, turn: SavedTurn, now: int) -> ThreadRuns:
    """Returns the runs with the checkpoint of the last one, which came after its end: it needs no second one."""
    latest = then.latest
    if latest is None or latest.checkpoint is not None or latest.run != turn.run:
        return then
    return replace(then, latest=replace(latest, checkpoint=Checkpoint(turn.offset, now, turn.files, turn.size)))
