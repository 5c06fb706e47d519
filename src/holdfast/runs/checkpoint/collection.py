"""Deletes checkpoints that no policy keeps and nothing refers to."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from holdfast.api.box.records import OWNER_THREAD
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.errors import NotFound, Refused
from holdfast.api.errors.boxes import BoxError, SnapshotNotFound
from holdfast.boxes.labels import CHECKPOINT
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.checkpoint.rules import policy_in, removable
from holdfast.runs.run_log import RunLog
from holdfast.threads.projection import Projection
from holdfast.threads.rows import ThreadRow

log = logging.getLogger(__name__)

_EVERY: Final = 10
"""After how many turns the checkpoints of a thread are looked through."""
_SWEEP_SECONDS: Final = 6 * 3600.0
UNSETTLED_MS: Final = 600_000
"""A snapshot that is younger may be about to get its entry."""
_SECOND_SWEEP_SECONDS: Final = 1200.0
"""After the first sweep. When a server is killed, a daemon may finish a snapshot that nobody waits for, after the next
server has looked. Then it has to become old enough."""


def pauses() -> Iterator[float]:
    """Yields the seconds after each sweep, without an end."""
    yield _SECOND_SWEEP_SECONDS
    while True:
        yield _SWEEP_SECONDS


class Collection:
    """Owned by the service of runs. `tasks` owns its tasks."""

    def __init__(self, log: RunLog, projection: Projection, boxes: Boxes, tasks: BackgroundTasks) -> None:
        self._log = log
        self._projection = projection
        self._boxes = boxes
        self._tasks = tasks
        self._lock = asyncio.Lock()

    def start(self) -> None:
        """Look through all checkpoints now, for what a killed server left, and again: see `pauses`."""
        self._tasks.start(self._keep_sweeping(), name="sweep of checkpoints")

    def after_checkpoint(self, thread: str, turn: int) -> None:
        if turn % _EVERY == 0:
            self._tasks.start(self._collect(thread), name=f"collection {thread}")

    def after_deletion(self, thread: str) -> None:
        self._tasks.start(self._collect(thread), name=f"collection {thread}")

    async def sweep(self, thread: str | None = None) -> int:
        """Delete what may go, of one thread or of all. Returns how many snapshots that were."""
        async with self._lock:
            found = await self._boxes.checkpoints()
            by_thread: dict[str, list[Snapshot]] = defaultdict(list)
            for each in found:
                by_thread[each.labels.get(OWNER_THREAD, "")].append(each)
            going: list[Snapshot] = []
            for owner in by_thread if thread is None else (thread,):
                going += await self._going(owner, by_thread.get(owner, []))
            gone = 0
            for each in going:
                # Asked again for each: a fork may have been made meanwhile.
                if each.id not in await self._projection.needed_snapshots():
                    gone += await self._delete(each)
            return gone

    async def _keep_sweeping(self) -> None:
        for pause in pauses():
            await self._collect(None)
            await asyncio.sleep(pause)

    async def _collect(self, thread: str | None) -> None:
        try:
            if gone := await self.sweep(thread):
                log.info("%d checkpoints were removed", gone)
        except (Refused, BoxError) as error:
            log.warning("checkpoints cannot be removed now, the next sweep tries again: %s", error)
        except Exception:
            log.exception("checkpoints cannot be removed now, the next sweep tries again")

    async def _going(self, thread: str, snapshots: list[Snapshot]) -> list[Snapshot]:
        try:
            row = await self._log.row(thread) if thread else None
        except NotFound:
            row = None
        needed = await self._projection.needed_snapshots()
        if row is None:
            return [each for each in snapshots if each.id not in needed]
        going: list[Snapshot] = []
        kept: list[Snapshot] = []
        for each in snapshots:
            (kept if each.id in needed or await self._is_used(row, each) else going).append(each)
        latest = row.runs.latest
        if latest is not None and latest.checkpoint is not None and latest.checkpoint.files is not None:
            needed = {*needed, latest.checkpoint.files.snapshot}
        provider = None if latest is None else self._boxes.providers.get(latest.provider)
        policy = policy_in({} if latest is None else latest.options, provider)
        return going + removable(kept, needed, policy, self._log.clock())

    async def _is_used(self, row: ThreadRow, snapshot: Snapshot) -> bool:
        """Returns whether an entry names the snapshot, or may still come to do so."""
        if self._log.clock() - snapshot.created_at < UNSETTLED_MS:
            return True
        latest, purpose = row.runs.latest, snapshot.labels[CHECKPOINT]
        if latest is not None and latest.run == purpose and latest.checkpoint is None:
            return True  # the next launch or fork adopts it
        found = await self._projection.run(purpose)
        checkpoint = None if found is None or found.thread != row.id else found.run.checkpoint
        return checkpoint is not None and checkpoint.files is not None and checkpoint.files.snapshot == snapshot.id

    async def _delete(self, snapshot: Snapshot) -> int:
        try:
            await self._boxes.delete_snapshot(snapshot.id)
        except SnapshotNotFound:
            return 0
        except BoxError as error:
            log.warning("checkpoint %s cannot be removed now, the next sweep tries again: %s", snapshot.id, error)
            return 0
        return 1
