"""The service of tasks: delegates them, and shows, awaits and cancels them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from holdfast.api.errors import Conflict, NotFound
from holdfast.api.errors.runs import InvalidRun
from holdfast.api.errors.tasks import DelegationLimit, NothingToShare, TaskNotFound
from holdfast.api.ids import new_id
from holdfast.api.run.info import CancelKind, RunError
from holdfast.api.run.tasks import BoxMode, DelegationLimits, NewTask, TaskInfo, TaskResult, TaskStatus
from holdfast.boxes.capabilities import Capability, require
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.delegate.reports import last_message
from holdfast.runs.delegate.rules import shorten, status_of, task_id, title_of, why_not
from holdfast.runs.delegate.tree import Trees
from holdfast.runs.launch.plan import (
    LaunchPlanner,
    Options,
    check_prompt,
    default_spec,
    key_of,
    next_options,
    with_life,
)
from holdfast.runs.run_log import RunLog
from holdfast.threads.delegation import (
    Delegation,
    child_read,
    child_read_id,
    delegated,
    prompt_id,
)
from holdfast.threads.projection import Projection
from holdfast.threads.protocol.surface import THREADS
from holdfast.threads.rows import ThreadRow
from holdfast.threads.run_events import Run, ThreadRuns
from holdfast.threads.store import StreamStore
from holdfast.time_limit import time_limit

_LONGEST_PAUSE: Final = 5.0
Reconcile = Callable[[str], Awaitable[ThreadRow]]


class Cancels(Protocol):
    async def request(self, thread: str, run: Run, kind: CancelKind, by: str | None) -> None:
        """Ask a live run to end."""
        ...


class Delegations:
    """All state of a task is on its thread. One lock for each tree keeps concurrent requests within its limits."""

    def __init__(
        self,
        store: StreamStore,
        log: RunLog,
        projection: Projection,
        trees: Trees,
        boxes: Boxes,
        planner: LaunchPlanner,
        cancels: Cancels,
        reconcile: Reconcile,
        *,
        limits: DelegationLimits,
    ) -> None:
        self._store = store
        self._log = log
        self._projection = projection
        self._trees = trees
        self._boxes = boxes
        self._planner = planner
        self._cancels = cancels
        self._reconcile = reconcile
        self.limits = limits
        self.tree_of = trees.tree_of
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By the root of a tree."""

    # --- delegating ---

    async def delegate(self, parent: str, new: NewTask, *, run: str | None = None) -> TaskInfo:
        """Start a task of a thread. Returns once the task is on disk. `run` is the run of the thread that asks.

        A request with the key of an earlier one returns the same task. Raises `DelegationLimit`.
        """
        check_prompt(new.prompt)
        task = new_id("t") if new.key is None else task_id(parent, new.key)
        row = await self._log.row(parent)
        above = row.runs.delegation
        root, depth = (parent, 1) if above is None else (above.root, above.depth + 1)
        async with self._locks.setdefault(root, asyncio.Lock()):
            if new.key is None or await self._known(parent, task) is None:
                options = await self._options(parent, row.runs, new)
                in_tree = [_delegation(each.runs) for each in await self._trees.tasks_below(root, self.limits.threads)]
                if (why := why_not(in_tree, parent, depth, new.box, self.limits)) is not None:
                    raise DelegationLimit(why, hint=f"wait for tasks to end: holdfast thread tree {root}")
                if run is None and row.runs.live is not None:
                    run = row.runs.live.run
                delegation = Delegation(
                    parent=parent,
                    root=root,
                    depth=depth,
                    agent=options.agent,
                    model=options.model or "",
                    box=new.box,
                    wake=new.wake,
                    run=run,
                    options=options.to_json(),
                )
                await self._create(task, new, delegation)
        # From here on the task is on disk. If this server dies, the next one starts it.
        return await self._info(await self._reconcile(task))

    async def _known(self, parent: str, task: str) -> ThreadRow | None:
        """Returns the task that an earlier request with the same key has created."""
        try:
            row = await self._log.row(task)
        except NotFound:
            return None
        if row.runs.delegation is None or row.runs.delegation.parent != parent:
            raise Conflict(f"thread {task}, which this key stands for, is not a task of {parent}: use another key")
        return row

    async def _create(self, task: str, new: NewTask, delegation: Delegation) -> None:
        """Create the thread of a task with everything that is needed to start it, in one commit."""
        title = new.title or title_of(new.prompt)
        created = {"type": "signal.thread.created", "title": title, "parent": delegation.parent, "labels": {}}
        prompt = {"type": "chat", "role": "user", "text": new.prompt, "queued": True}
        await self._log.create(
            task,
            self._log.entry(created),
            self._log.entry(delegated(delegation)),
            self._log.entry(prompt, id=prompt_id(task), author=new.author_id or delegation.parent),
        )

    async def _options(self, parent: str, runs: ThreadRuns, new: NewTask) -> Options:
        """Returns the options of a task: those of its parent, in another box. Raises what a launch would raise."""
        begun = runs.delegation is not None or (runs.latest is not None and runs.latest.is_proven)
        if not begun and new.agent is None:
            raise InvalidRun(f"thread {parent} has had no run, so name the agent of the task", hint="--agent NAME")
        box = await self._planner.box_of(parent)
        if begun:
            options = next_options(runs, new.agent, new.model, box)
        else:
            options = Options(new.agent or "", new.model, default_spec())
        if new.fallbacks:
            options = replace(options, fallbacks=new.fallbacks)
        owner = options.shares or parent
        options = replace(options, fresh=False, shares=None, forks=None, workspace=runs.workspace)
        if new.box is not BoxMode.OWN:
            row = await self._boxes.of_key(key_of(owner))
            if row is None:
                raise NothingToShare(
                    f"thread {parent} has no box that a task could {'copy' if new.box is BoxMode.FORK else 'share'}",
                    hint="delegate the task to a box of its own",
                )
            spec = with_life(row.spec)
            if new.box is BoxMode.FORK:
                require(row.provider, self._boxes.provider(row.provider).capabilities, Capability.FORK)
                options = replace(options, spec=spec, forks=row.id, workspace=None)
            else:
                options = replace(options, spec=spec, shares=owner, workspace=None)
        return self._planner.plan(options).options

    # --- reading ---

    async def get(self, task: str, *, parent: str | None = None) -> TaskInfo:
        """Returns a task. Raises `TaskNotFound`. With `parent`, only a task of that thread is found."""
        return await self._info(await self._find(task, parent))

    async def list(self, thread: str) -> list[TaskInfo]:
        """Returns the tasks of a thread, most recently active first."""
        await self._log.row(thread)
        return [await self._info(each) for each in await self._trees.tasks_of(thread)]

    async def result(self, task: str, *, wait: float = 0, parent: str | None = None) -> TaskResult:
        """Returns the result of a task, after waiting for its end at most this many seconds.

        With `parent`, the agent of that thread has asked: once it has the result, it is not told again.
        """
        changed = asyncio.Event()
        await self._find(task, parent)
        stop = self._store.watch(THREADS + task, lambda change: changed.set())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait
        try:
            while True:
                changed.clear()
                row = await self._find(task, parent)
                left = deadline - loop.time()
                if not _delegation(row.runs).is_open or left <= 0:
                    break
                with suppress(TimeoutError):
                    async with time_limit(min(left, _LONGEST_PAUSE)):
                        await changed.wait()
        finally:
            stop()
        delegation, status = _delegation(row.runs), status_of(row.runs)
        if delegation.told is None:
            return TaskResult(id=task, status=status, result=None)
        found = await self._projection.run(delegation.told)
        if found is None or found.thread != task:
            return TaskResult(id=task, status=status, result="")
        if parent is not None:
            signal = child_read(task, delegation.told)
            await self._log.append(parent, self._log.entry(signal, id=child_read_id(delegation.told)))
        text = await last_message(self._log, task, found.run)
        return TaskResult(
            id=task,
            status=TaskStatus(found.run.status.value),
            result=shorten(text, task),
            error=_error(found.run.error),
        )

    async def _find(self, task: str, parent: str | None) -> ThreadRow:
        missing = TaskNotFound(f"there is no task {task}", hint="holdfast thread tree THREAD lists the tasks of a tree")
        try:
            delegation = (await self._log.runs(task)).delegation
        except NotFound:
            raise missing from None
        if delegation is None or (parent is not None and delegation.parent != parent):
            raise missing
        return await self._reconcile(task)

    async def _info(self, row: ThreadRow) -> TaskInfo:
        delegation, run = _delegation(row.runs), row.runs.latest
        return TaskInfo(
            id=row.id,
            title=row.title,
            parent=delegation.parent,
            root=delegation.root,
            depth=delegation.depth,
            status=status_of(row.runs),
            agent=delegation.agent,
            model=delegation.model,
            box=delegation.box,
            wake=delegation.wake,
            run=None if run is None else run.run,
            open_tasks=len(await self._trees.open_tasks_of(row.id)),
            reported=not delegation.is_open,
            created_at=row.created_at,
            ended_at=None if run is None else run.ended_at,
        )

    # --- cancelling ---

    async def cancel(self, task: str, *, by: str | None = None, parent: str | None = None) -> TaskInfo:
        """Cancel a task and all tasks below it. A task that has ended stays as it is."""
        row = await self._find(task, parent)
        if row.runs.live is not None:
            await self._cancels.request(task, row.runs.live, CancelKind.CANCEL, by)
        await self.cancel_below(task, by=by)
        return await self.get(task)

    async def cancel_below(self, thread: str, *, by: str | None = None) -> int:
        """Cancel all open tasks below a thread. Returns how many there were."""
        count = 0
        for row in await self._trees.tasks_below(thread):
            if not _delegation(row.runs).is_open:
                continue
            count += 1
            with suppress(NotFound):  # deleted meanwhile
                live = (await self._reconcile(row.id)).runs.live
                if live is not None:
                    await self._cancels.request(row.id, live, CancelKind.CANCEL, by)
        return count


def _delegation(runs: ThreadRuns) -> Delegation:
    assert runs.delegation is not None
    return runs.delegation


def _error(error: dict[str, Any] | None) -> RunError | None:
    if error is None:
        return None
    return RunError(code=error.get("code", "failed"), message=error.get("message", ""), hint=error.get("hint"))
