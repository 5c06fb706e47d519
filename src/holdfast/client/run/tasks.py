"""The tasks of a server: threads that another thread has started. Delegate, await and cancel them: `client.tasks`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from holdfast.api.ids import new_id
from holdfast.api.run.runs import Cancel
from holdfast.api.run.tasks import (
    MAX_WAIT,
    BoxMode,
    NewTask,
    TaskInfo,
    TaskList,
    TaskResult,
    TaskStatus,
    ThreadTree,
    TreeThread,
)
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import LONG_SECONDS, Resource

_PAUSE: Final = 1.0
_OPEN: Final = (TaskStatus.STARTING, TaskStatus.RUNNING)


class Tasks:
    """All tasks of one server: `client.tasks`. The id of a task is that of its thread."""

    def __init__(self, connection: ServerConnection) -> None:
        self._threads = Resource(connection, "/v1/threads")
        self._tasks = Resource(connection, "/v1/tasks")

    async def delegate(
        self,
        thread: str,
        prompt: str,
        *,
        title: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        fallbacks: Sequence[str] = (),
        box: str = "own",
        wake: bool = False,
        key: str | None = None,
        author_id: str | None = None,
    ) -> TaskInfo:
        """Start a task of a thread. Returns once it is on the server's disk, before its agent has started.

        `box` is `own`, `fork` (a copy of the thread's box) or `same`. With `wake`, the result starts a run of the
        thread. Calls with the same `key` on the same thread start one task.
        """
        new = NewTask(
            prompt=prompt,
            title=title,
            agent=agent,
            model=model,
            fallbacks=tuple(fallbacks),
            box=BoxMode(box),
            wake=wake,
            key=key or new_id("k"),  # so that a retry finds what the first attempt started
            author_id=author_id,
        )
        answer = await self._threads.below(thread).ask("POST", "/tasks", new.to_request(), timeout=LONG_SECONDS)
        return answer.read(TaskInfo.from_json)

    async def get(self, task: str) -> TaskInfo:
        return (await self._tasks.below(task).ask("GET")).read(TaskInfo.from_json)

    async def list(self, thread: str) -> list[TaskInfo]:
        """Returns the tasks of a thread, most recently active first."""
        return list((await self._threads.below(thread).ask("GET", "/tasks")).read(TaskList.from_json).tasks)

    async def result(self, task: str, *, wait: bool = True) -> TaskResult:
        """Wait until a task has ended, and return its result. Without `wait`, its `result` is None until then."""
        seconds = MAX_WAIT if wait else 0
        while True:
            answer = await self._tasks.below(task).ask(
                "GET", "/result", parameters=[("wait", str(seconds))], timeout=LONG_SECONDS
            )
            found = answer.read(TaskResult.from_json)
            if not wait or found.status not in _OPEN:
                return found

    async def cancel(self, task: str, *, by: str | None = None) -> TaskInfo:
        """End a task, and all tasks below it."""
        answer = await self._tasks.below(task).ask("POST", "/cancel", Cancel(by=by).to_request())
        return answer.read(TaskInfo.from_json)

    async def tree(self, thread: str) -> ThreadTree:
        """Returns the tree that a thread is in: its root, and the tasks and forks below that."""
        return (await self._threads.below(thread).ask("GET", "/tree")).read(ThreadTree.from_json)

    async def wait(self, thread: str) -> ThreadTree:
        """Wait until a thread and all threads below it have nothing left to do. Returns its tree."""
        while True:
            tree = await self.tree(thread)
            if not any(each.live for each in below(tree, thread)):
                return tree
            await asyncio.sleep(_PAUSE)


def below(tree: ThreadTree, thread: str) -> tuple[TreeThread, ...]:
    """Returns a thread of a tree, and everything below it."""
    known = {thread}
    for each in tree.threads:  # parents come first
        if each.parent in known or each.fork_of in known:
            known.add(each.id)
    return tuple(each for each in tree.threads if each.id in known)
