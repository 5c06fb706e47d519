"""Tells threads about their tasks: that one starts, and how it ended. The reconciler calls this until it is done.

The entries on the parent have ids that follow from the task and its run, so repeating a step has no effect. Only then
is the report noted on the task itself. Whoever dies in between, the next sweep repeats what is missing.
"""

from __future__ import annotations

import logging
from typing import Final

from holdfast.api.errors import NotFound
from holdfast.api.errors.threads import Closed
from holdfast.api.run.info import CancelKind
from holdfast.runs.cancel_request import CancelRequests
from holdfast.runs.delegate.rules import report_text, title_of
from holdfast.runs.delegate.tree import Trees
from holdfast.runs.run_log import RunLog
from holdfast.threads.delegation import (
    Delegation,
    child_end_id,
    child_finished,
    child_result,
    child_result_id,
    child_start_id,
    child_started,
    reported,
    reported_id,
)
from holdfast.threads.projection import Projection
from holdfast.threads.rows import ThreadRow
from holdfast.threads.run_events import Run, ThreadRuns

log = logging.getLogger(__name__)

_HIGHEST: Final = 64


class TaskReports:
    """What the reconciler does about a thread that is a task."""

    def __init__(self, log: RunLog, projection: Projection, trees: Trees, requests: CancelRequests) -> None:
        self._log = log
        self._projection = projection
        self._trees = trees
        self._requests = requests

    async def announce(self, thread: str, row: ThreadRow) -> None:
        """Write on the parent that the task is about to start."""
        delegation = _delegation(row.runs)
        signal = child_started(thread, row.title or title_of(thread), delegation)
        try:
            await self._log.append(delegation.parent, self._log.entry(signal, id=child_start_id(thread)))
        except (NotFound, Closed):
            log.info("the parent of task %s is gone or closed", thread)

    async def is_parent_cancelled(self, runs: ThreadRuns) -> bool:
        """Returns whether a run that a task descends from was cancelled, or its thread deleted."""
        delegation = runs.delegation
        for _ in range(_HIGHEST):
            if delegation is None:
                return False
            found = None if delegation.run is None else await self._projection.run(delegation.run)
            if found is not None and found.thread == delegation.parent and found.run.cancel is CancelKind.CANCEL:
                return True
            try:
                delegation = (await self._log.runs(delegation.parent)).delegation
            except NotFound:
                return True
        return False

    async def cancel(self, thread: str, run: Run) -> None:
        await self._requests.send(thread, run, CancelKind.CANCEL, None)

    async def report(self, thread: str, row: ThreadRow) -> bool:
        """Write the end of a task on its parent, and then on the task that this is done.

        A task that waits to be woken by tasks of its own has not ended yet: then this returns False.
        """
        delegation, run = _delegation(row.runs), row.runs.latest
        assert run is not None
        below = await self._trees.open_tasks_of(thread)
        if any(_delegation(each.runs).wake for each in below):
            return False
        result = await last_message(self._log, thread, run)
        ended = run.started_at if run.ended_at is None else run.ended_at
        signal = child_finished(thread, run.run, run.status.value, max(0, ended - run.started_at), run.error)
        chat = child_result(thread, run.run, report_text(thread, row.title, run, result), wake=delegation.wake)
        try:
            await self._log.append(
                delegation.parent,
                self._log.entry(signal, id=child_end_id(run.run)),
                self._log.entry(chat, id=child_result_id(run.run), author=thread),
            )
        except (NotFound, Closed):
            log.info("the parent of task %s is gone or closed, so nobody is told that the task has ended", thread)
        await self._log.append(thread, self._log.entry(reported(delegation.parent, run.run), id=reported_id(run.run)))
        return True


def _delegation(runs: ThreadRuns) -> Delegation:
    assert runs.delegation is not None
    return runs.delegation


async def last_message(log: RunLog, thread: str, run: Run) -> str:
    """Returns the last message of an agent in a run."""
    text = ""
    kind = f"{run.harness}.assistant"
    async for entry in log.entries(thread, run.since):
        payload = entry["payload"]
        if payload["type"] == kind and isinstance(payload.get("text"), str) and payload["text"].strip():
            text = payload["text"]
        elif payload["type"] == "signal.run.started" and payload.get("run") == run.run:
            text = ""  # what an earlier run has said
        elif payload["type"] == "signal.run.finished" and payload.get("run") == run.run:
            break
    return text
