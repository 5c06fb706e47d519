"""Walks the threads around a thread: up to the root of its tree, and down to tasks, children and forks."""

from __future__ import annotations

from typing import Final

from holdfast.api.errors import NotFound
from holdfast.api.run.tasks import ThreadTree, TreeThread
from holdfast.runs.reconcile.rules import is_due, is_open_task
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RowFilter, ThreadRow
from holdfast.threads.run_events import ThreadRuns
from holdfast.threads.service import Threads

_MOST: Final = 1000
_HIGHEST: Final = 64


class Trees:
    def __init__(self, threads: Threads, projection: Projection) -> None:
        self._threads = threads
        self._projection = projection

    async def tasks_of(self, thread: str) -> list[ThreadRow]:
        """Returns the tasks that a thread has delegated, most recently active first."""
        rows = await self._projection.rows(RowFilter(parent=thread, archived=None, limit=_MOST))
        return [row for row in rows if row.runs.delegation is not None and row.runs.delegation.parent == thread]

    async def open_tasks_of(self, thread: str) -> list[ThreadRow]:
        return [row for row in await self.tasks_of(thread) if _is_open(row)]

    async def tasks_below(self, root: str, most: int = _MOST) -> list[ThreadRow]:
        """Returns all tasks below a thread, parents first, and no more than `most`."""
        found: list[ThreadRow] = []
        pending = [root]
        while pending and len(found) < most:
            tasks = await self.tasks_of(pending.pop(0))
            found += tasks
            pending += [row.id for row in tasks]
        return found[:most]

    async def tree_of(self, thread: str) -> ThreadTree:
        """Returns the tree that a thread is in: with all children, and forks, of its threads."""
        top = await self._top(await self._threads.get(thread))
        rows, known, truncated = [top], {top.id}, False
        pending = [top.id]
        while pending:
            id = pending.pop(0)
            below = await self._projection.rows(RowFilter(parent=id, archived=None, limit=_MOST))
            below += await self._projection.rows(RowFilter(fork_of=id, archived=None, limit=_MOST))
            for row in sorted(below, key=lambda each: (each.created_at, each.id)):
                if row.id in known:
                    continue
                if len(rows) >= _MOST:
                    truncated = True
                    break
                known.add(row.id)
                rows.append(row)
                pending.append(row.id)
        return ThreadTree(root=top.id, threads=tuple(map(_tree_thread, rows)), truncated=truncated)

    async def _top(self, row: ThreadRow) -> ThreadRow:
        seen = {row.id}
        for _ in range(_HIGHEST):
            above = _above(row)
            if above is None or above in seen:
                break
            seen.add(above)
            try:
                row = await self._threads.get(above)
            except NotFound:  # it was deleted
                break
        return row


def _above(row: ThreadRow) -> str | None:
    return row.parent if row.lineage.fork_of is None else row.lineage.fork_of.thread


def _is_open(row: ThreadRow) -> bool:
    return is_open_task(row.runs)


def _is_live(runs: ThreadRuns) -> bool:
    """Returns whether something is left to do for the server. What waits for somebody to resume the thread is not."""
    if runs.session is not None:
        return runs.is_unsettled
    return runs.live is not None or is_open_task(runs) or is_due(runs)


def _tree_thread(row: ThreadRow) -> TreeThread:
    run = row.runs.latest
    return TreeThread(
        id=row.id,
        title=row.title,
        status=row.status.value,
        parent=row.parent,
        fork_of=None if row.lineage.fork_of is None else row.lineage.fork_of.thread,
        task=row.runs.delegation is not None,
        agent=None if run is None else run.agent,
        last_activity_at=row.last_activity_at,
        live=_is_live(row.runs),
    )
