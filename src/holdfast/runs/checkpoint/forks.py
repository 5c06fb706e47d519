"""Forks a thread at the end of a turn: its entries up to there, and a box with the files as they were.

The new thread and the entry that names its files are written in one step. If the server dies after that, the fork is
whole: its box is created when it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.api.errors import Conflict, NotFound
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.runs import InvalidRun
from holdfast.api.ids import new_id
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.checkpoint.checkpoints import Checkpoints
from holdfast.runs.checkpoint.rules import fork_title
from holdfast.runs.checkpoint.turns import SavedTurn, Turns
from holdfast.runs.launch.plan import LaunchPlanner, next_options
from holdfast.runs.launch.steps import Launcher
from holdfast.runs.run_log import RunLog
from holdfast.threads.checkpoints import ForkOf
from holdfast.threads.entries import keyed
from holdfast.threads.lineage import forked
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import ThreadRow
from holdfast.threads.service import Threads
from holdfast.threads.store import ForkPoint, StreamConfig, StreamStore


@dataclass(frozen=True, slots=True)
class Fork:
    row: ThreadRow
    box: BoxRow
    ms: int
    """How long it took."""


class Forks:
    """Makes forks. Keeps no state of its own."""

    def __init__(
        self,
        store: StreamStore,
        log: RunLog,
        threads: Threads,
        boxes: Boxes,
        checkpoints: Checkpoints,
        turns: Turns,
        planner: LaunchPlanner,
        launcher: Launcher,
        *,
        ticks: Callable[[], int],
    ) -> None:
        self._store = store
        self._log = log
        self._threads = threads
        self._boxes = boxes
        self._checkpoints = checkpoints
        self._turns = turns
        self._planner = planner
        self._launcher = launcher
        self._ticks = ticks

    async def fork(
        self, source: str, at: str | None = None, *, id: str | None = None, title: str | None = None
    ) -> Fork:
        """Fork a thread at a turn, an entry, or its latest turn. The same id again returns the same fork."""
        began = self._ticks()
        new = False
        if id is None or not await self.is_made(source, at, id):
            await self._checkpoints.settle(source)
            turn = await self._turns.find(source, at)
            id = id or new_id("t")
            new = await self._create(source, turn, id, title)
        row = await self._log.row(id)
        try:
            box = await self._box(row)
        except (BoxError, InvalidRun):
            if new:
                await self._threads.delete(id)
            raise
        return Fork(row, box, self._ticks() - began)

    async def is_made(self, source: str, at: str | None, id: str) -> bool:
        """Returns whether an earlier request has made this fork. The source may have gone on since, or be deleted.

        Raises `Conflict` if there is another thread with this id.
        """
        try:
            fork_of = (await self._log.row(id)).lineage.fork_of
        except NotFound:
            return False
        is_turn = at is not None and at.isascii() and at.isdigit()
        if fork_of is None or fork_of.thread != source or (at is not None and is_turn and int(at) != fork_of.turn):
            raise Conflict(f"thread {id} already exists")
        return True

    async def _create(self, source: str, turn: SavedTurn, id: str, title: str | None) -> bool:
        """Returns whether the thread is new."""
        fork_of = ForkOf(source, turn.number, turn.offset)
        entries = [self._log.sealed(id, self._log.entry(forked(fork_of, turn.files), id=f"forked-{id}"))]
        title = title or fork_title(source, (await self._log.row(source)).title, turn.number)
        entries.append(self._log.entry({"type": "signal.thread.renamed", "title": title}))
        config = StreamConfig(content_type="application/json", fork=ForkPoint(THREADS + source, turn.offset, 0))
        created = await self._store.create(THREADS + id, config, keyed=tuple(map(keyed, entries)))
        if not created.new and (await self._log.row(id)).lineage.fork_of != fork_of:
            raise Conflict(f"thread {id} already exists")
        return created.new

    async def _box(self, row: ThreadRow) -> BoxRow:
        base = row.lineage.base
        assert base is not None
        agent = None if row.runs.latest is None else row.runs.latest.agent
        box = await self._planner.box_of(row.id)
        options = self._planner.fit(next_options(row.runs, agent, None, box, base))
        return (await self._launcher.start_from(row.id, options.box, base)).row
