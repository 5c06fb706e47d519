"""Takes the checkpoint of a turn: a snapshot of the thread's box, then the entry that names it.

The snapshot comes first and is labelled with its run. If the server dies in between, the next one finds it by that
label and writes the entry. The entry has one id for each run, so there is one checkpoint, or one reason why there is
none. A turn begins only when the one before it is settled in this way (`settle`), so nothing has changed its files.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from holdfast.api.box.records import BoxState
from holdfast.api.box.snapshots import Snapshot
from holdfast.api.errors import NotFound, Refused
from holdfast.api.errors.boxes import BoxError, SnapshotNotFound
from holdfast.api.run.checkpoints import CheckpointPolicy
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.checkpoint.rules import policy_in, turn_to_save
from holdfast.runs.launch.plan import key_of
from holdfast.runs.run_log import RunLog
from holdfast.threads.checkpoints import Files
from holdfast.threads.lineage import checkpoint_id, checkpoint_skipped, checkpointed
from holdfast.threads.run_events import Run, end_id
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

_RUNNER_SECONDS: Final = 3.0
"""The end of a run is on its thread before its runner has exited."""
_STILL_SECONDS: Final = 0.3
_FIRST_WAIT: Final = 0.005
_SLACK_SECONDS: Final = 15.0


class Skipped(Exception):
    """The files of a turn are not saved, for this reason."""


class Checkpoints:
    """The checkpoints that this server takes. `tasks` owns their tasks."""

    def __init__(
        self,
        log: RunLog,
        boxes: Boxes,
        tasks: BackgroundTasks,
        *,
        ticks: Callable[[], int],
        on_taken: Callable[[str, int], None] = lambda thread, turn: None,
    ) -> None:
        """`on_taken` is called with the thread and the number of the turn."""
        self._log = log
        self._boxes = boxes
        self._tasks = tasks
        self._ticks = ticks
        self._on_taken = on_taken
        self._underway: dict[str, asyncio.Task[None]] = {}
        """By thread."""
        self._late: dict[str, asyncio.Task[None]] = {}
        """Snapshots that took too long, by box. Until they end, the provider may hold the box still."""
        self._tried: set[str] = set()
        """Runs whose snapshot may exist without an entry, because writing the entry failed."""
        self._first = log.clock()
        """Runs that ended before this server began may have a snapshot of an earlier server."""

    def begin(self, thread: str) -> None:
        """Called when a run of a thread has ended. Takes the checkpoint in the background."""
        if thread not in self._underway:
            self._start(thread)

    async def settle(self, thread: str) -> None:
        """Returns when the latest turn of a thread has its checkpoint, or the reason why it has none."""
        if (underway := self._underway.get(thread)) is not None:
            await asyncio.wait((underway,))
        if turn_to_save(await self._log.runs(thread)) is not None:
            await asyncio.wait((self._underway.get(thread) or self._start(thread),))
        if self._late and (row := await self._boxes.of_key(key_of(thread))) is not None and row.id in self._late:
            await asyncio.wait((self._late[row.id],))

    def _start(self, thread: str) -> asyncio.Task[None]:
        task = self._tasks.start(self._take(thread), name=f"checkpoint {thread}")
        self._underway[thread] = task
        task.add_done_callback(lambda done: self._underway.pop(thread, None))
        return task

    async def _take(self, thread: str) -> None:
        """Errors are logged. The next `settle` tries again."""
        try:
            run = turn_to_save(await self._log.runs(thread))
            if run is not None:
                await self._save(thread, run)
        except NotFound:
            log.info("thread %s was deleted before its checkpoint was taken", thread)
        except (Refused, OSError) as error:
            log.warning("the checkpoint of thread %s cannot be written: %s", thread, error)
        except Exception:
            log.exception("the checkpoint of thread %s cannot be taken", thread)

    async def _save(self, thread: str, run: Run) -> None:
        row = await self._boxes.of_key(key_of(thread))
        provider = None if row is None else self._boxes.provider(row.provider)
        policy = policy_in(run.options, provider)
        if not policy.every:
            return
        began = self._ticks()
        offset = await self._log.position_after(thread, end_id(run.run), max(run.since, run.until))
        if offset is None:  # the thread was read anew since the run was
            return
        try:
            snapshot = await self._snapshot(run, row, policy)
        except Skipped as skipped:
            payload = checkpoint_skipped(run, offset, str(skipped))
            await self._log.append(thread, self._log.entry(payload, id=checkpoint_id(run.run)))
            return
        assert row is not None
        files = Files(snapshot.id, row.provider, row.spec.image)
        payload = checkpointed(run, offset, files, size=snapshot.size, ms=self._ticks() - began)
        self._tried.add(run.run)
        try:
            await self._log.append(thread, self._log.entry(payload, id=checkpoint_id(run.run)))
        except NotFound:
            with suppress(SnapshotNotFound):
                await self._boxes.delete_snapshot(snapshot.id)
            raise
        self._tried.discard(run.run)
        self._on_taken(thread, run.turn)

    async def _snapshot(self, run: Run, row: BoxRow | None, policy: CheckpointPolicy) -> Snapshot:
        """Raises `Skipped`."""
        if row is None:
            raise Skipped(f"box {run.box} is gone")
        if row.node != self._boxes.node:
            raise Skipped(f"box {row.id} is at another server")
        if Capability.SNAPSHOTS not in self._boxes.provider(row.provider).capabilities:
            raise Skipped(f"provider {row.provider} takes no snapshots")
        try:
            if run.run in self._tried or (run.ended_at or 0) <= self._first:
                found = await self._boxes.checkpoints(provider=row.provider, of=run.run)
                if found:
                    return found[-1]
            with self._boxes.using(row.id):
                await self._until_still(row, run)
                cost = await self._boxes.snapshot_cost(row)
                if cost is not None and cost > policy.size:
                    raise Skipped(f"{cost >> 20} MB would have to be copied now, more than {policy.size >> 20} MB")
                return await self._take_within(policy.seconds, row, run)
        except BoxError as error:
            raise Skipped(str(error)) from error

    async def _take_within(self, seconds: int, row: BoxRow, run: Run) -> Snapshot:
        taking = asyncio.ensure_future(self._boxes.snapshot(row.id, checkpoint=run.run))
        try:
            done, _ = await asyncio.wait((taking,), timeout=seconds)
        except asyncio.CancelledError:
            taking.cancel()
            await asyncio.wait((taking,), timeout=_SLACK_SECONDS)
            raise
        if done:
            return taking.result()
        taking.cancel()  # Docker, for one, ends it all the same, and holds the box until then
        late = self._tasks.start(self._discard(taking), name=f"late snapshot of {row.id}")
        self._late[row.id] = late
        late.add_done_callback(lambda done: self._late.pop(row.id, None))
        raise Skipped(f"the snapshot took longer than {seconds} s")

    async def _discard(self, taking: asyncio.Future[Snapshot]) -> None:
        """Delete a snapshot that came too late."""
        await asyncio.wait((taking,))
        if not taking.cancelled() and taking.exception() is None:
            with suppress(SnapshotNotFound):
                await self._boxes.delete_snapshot(taking.result().id)

    async def _until_still(self, row: BoxRow, run: Run) -> None:
        """Wait a moment for the end of the runner and its agent: a box in which nothing runs is not copied."""
        if row.state is not BoxState.RUNNING:
            return
        try:
            async with time_limit(_RUNNER_SECONDS), await self._boxes.peek(row.id) as box:
                if run.process is not None and row.id == run.box:
                    with suppress(BoxError):
                        await (await box.process(run.process)).wait()
                wait, waited = _FIRST_WAIT, 0.0
                while (await box.activity()).processes and waited < _STILL_SECONDS:
                    await asyncio.sleep(wait)
                    wait, waited = wait * 2, waited + wait
        except (BoxError, TimeoutError) as error:
            log.info("cannot wait for the processes of box %s: %s", row.id, error)
