"""The turns of a thread, with those that it took over from the threads that it was forked from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.api.box.records import OWNER_THREAD
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.errors import NotFound
from holdfast.api.errors.boxes import SnapshotNotFound, Unsupported, WrongSnapshot
from holdfast.api.errors.runs import NoCheckpoint, TurnNotFound
from holdfast.boxes.labels import CHECKPOINT
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.errors import thread_busy
from holdfast.runs.run_log import RunLog
from holdfast.threads.checkpoints import Checkpoint, Files
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RunFilter, ThreadRow
from holdfast.threads.run_events import Run

_DEEPEST: Final = 100
_MOST: Final = 100_000


@dataclass(frozen=True, slots=True)
class Turn:
    number: int
    thread: str
    """The thread that it happened on."""
    run: Run


@dataclass(frozen=True, slots=True)
class SavedTurn:
    """The end of a turn that can be forked or rewound to."""

    number: int
    run: str
    offset: int
    files: Files
    size: int | None = None


class Turns:
    """Reads turns. The rows of runs are a cache of the threads that the runs happened on."""

    def __init__(self, log: RunLog, projection: Projection, boxes: Boxes) -> None:
        self._log = log
        self._projection = projection
        self._boxes = boxes

    async def of(self, thread: str) -> list[Turn]:
        """Returns all turns, oldest first. Those of a source that was deleted are missing."""
        found: list[Turn] = []
        last = _MOST
        for _ in range(_DEEPEST):
            try:
                row = await self._log.row(thread)
            except NotFound:
                break
            runs = [each.run for each in await self._projection.runs(RunFilter(thread=thread, limit=_MOST))]
            # The row of a run is saved when it changes. The thread's row is always up to date.
            runs = [row.runs.latest if row.runs.latest and row.runs.latest.run == each.run else each for each in runs]
            found += [Turn(each.turn, thread, each) for each in runs if each.is_ours and 0 < each.turn <= last]
            source = row.lineage.fork_of
            if source is None:
                break
            thread, last = source.thread, min(last, source.turn)
        return sorted(found, key=lambda each: each.number)

    async def listed(self, thread: str) -> tuple[list[Turn], frozenset[str], frozenset[str]]:
        """Returns all turns, the runs of those that were rewound, and the snapshots that are there."""
        row, turns = await self._log.row(thread), await self.of(thread)
        dropped = [
            each.run.run
            for each in turns
            if each.run.checkpoint is not None
            and any(begin < each.run.checkpoint.offset <= end for begin, end in row.runs.dropped)
        ]
        return turns, frozenset(dropped), frozenset(each.id for each in await self._boxes.checkpoints())

    async def find(self, thread: str, at: str | None) -> SavedTurn:
        """Returns a turn by its number or by an entry, or the latest one, if its files are saved.

        Raises `ThreadBusy`, `TurnNotFound` or `NoCheckpoint`.
        """
        row = await self._log.row(thread)
        if row.runs.latest is None:
            raise TurnNotFound(
                f"thread {thread} has had no run", hint=f'begin: holdfast resume {thread} "…" --agent NAME'
            )
        number = row.runs.latest.turn if at is None else await self._number(thread, at)
        if (own := _at_fork(row, number)) is not None:
            await self._check(thread, own, None)
            return own
        turn = await self._turn(thread, number)
        if turn is None:
            raise TurnNotFound(
                f"thread {thread} has no turn {number}", hint=f"see its turns: holdfast thread turns {thread}"
            )
        if turn.run.live:
            raise thread_busy(turn.thread, turn.run.run)
        checkpoint = turn.run.checkpoint
        saved = None if checkpoint is None else _saved(turn, checkpoint)
        if saved is None:
            why = "checkpoints were off" if checkpoint is None else checkpoint.why
            raise no_checkpoint(thread, number, why or "its files were not saved")
        await self._check(turn.thread, saved, saved.run)
        return saved

    async def check(self, thread: str, files: Files, purpose: str) -> None:
        """Raises `NoCheckpoint` if the snapshot is gone, or was not taken from this thread for this purpose."""
        snapshot = await self._find(files)
        if snapshot is None or snapshot.labels.get(OWNER_THREAD) != thread:
            raise NoCheckpoint(f"snapshot {files.snapshot} of thread {thread} is gone")
        if snapshot.labels.get(CHECKPOINT) != purpose:
            raise NoCheckpoint(f"snapshot {files.snapshot} of thread {thread} was not taken for this")

    async def _check(self, thread: str, turn: SavedTurn, purpose: str | None) -> None:
        snapshot = await self._find(turn.files)
        if snapshot is None:
            raise no_checkpoint(thread, turn.number, f"snapshot {turn.files.snapshot} was removed")
        if purpose is not None and (
            snapshot.labels.get(CHECKPOINT) != purpose or snapshot.labels.get(OWNER_THREAD) != thread
        ):
            raise no_checkpoint(thread, turn.number, f"snapshot {snapshot.id} is not of this turn")

    async def _find(self, files: Files) -> Snapshot | None:
        try:
            return await self._boxes.find_snapshot(files.snapshot, files.provider)
        except (SnapshotNotFound, WrongSnapshot, Unsupported):
            return None

    async def _turn(self, thread: str, number: int) -> Turn | None:
        """Returns one turn. A thread may have very many, so the others are not read."""
        for _ in range(_DEEPEST):
            try:
                row = await self._log.row(thread)
            except NotFound:
                return None
            source = row.lineage.fork_of
            if source is None or number > source.turn:
                break
            thread = source.thread
        else:
            return None
        latest = row.runs.latest
        # The row of a run is saved when it changes. The thread's row is always up to date.
        runs = [latest] if latest is not None and latest.turn == number else []
        runs = runs or [each.run for each in await self._projection.runs(RunFilter(thread=thread, turn=number))]
        return next((Turn(number, thread, each) for each in runs if each.is_ours), None)

    async def _number(self, thread: str, at: str) -> int:
        if at.isascii() and at.isdigit():
            return int(at)
        position = await self._log.position_after(thread, at)
        if position is None:
            raise TurnNotFound(
                f"thread {thread} has no turn and no entry {at!r}",
                hint=f"see its turns: holdfast thread turns {thread}",
            )
        number = last_before(await self.of(thread), position)
        if number is None:
            raise TurnNotFound(
                f"entry {at} is from before the end of the first turn of thread {thread}",
                hint=f"see its turns: holdfast thread turns {thread}",
            )
        return number


def last_before(turns: Iterable[Turn], position: int) -> int | None:
    """Returns the last turn that has a checkpoint and had ended at a position."""
    ended = [
        each.number
        for each in turns
        if each.run.checkpoint is not None and each.run.checkpoint.files and each.run.checkpoint.offset <= position
    ]
    return max(ended, default=None)


def no_checkpoint(thread: str, turn: int, why: str) -> NoCheckpoint:
    return NoCheckpoint(
        f"turn {turn} of thread {thread} has no checkpoint: {why}",
        hint=f"take another turn: holdfast thread turns {thread}",
    )


def _at_fork(row: ThreadRow, number: int) -> SavedTurn | None:
    """Returns the turn at which a thread was forked, from its own row: its source may be deleted."""
    source, base = row.lineage.fork_of, row.lineage.base
    if source is None or base is None or source.turn != number or base.run is None or not base.id.startswith("forked-"):
        return None
    return SavedTurn(number, base.run, source.offset, base.files)


def _saved(turn: Turn, checkpoint: Checkpoint) -> SavedTurn | None:
    if checkpoint.files is None:
        return None
    return SavedTurn(turn.number, turn.run.run, checkpoint.offset, checkpoint.files, checkpoint.size)
