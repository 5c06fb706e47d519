"""REST: delegates tasks, shows, awaits and cancels them, and shows the tree of a thread."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from holdfast.api.limits import ThreadId
from holdfast.api.run.runs import Cancel
from holdfast.api.run.tasks import MAX_WAIT, NewTask, TaskInfo, TaskList, TaskResult, ThreadTree
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import UseRuns

router = APIRouter(prefix="/v1", tags=["tasks"], responses=BOX_ERRORS)


@router.post("/threads/{id}/tasks", status_code=201)
async def delegate_task(id: ThreadId, new: NewTask, runs: UseRuns) -> TaskInfo:
    """Delegate a task of a thread to another agent. Answers once the task is on disk, before it has started."""
    return await runs.delegations.delegate(id, new)


@router.get("/threads/{id}/tasks")
async def list_tasks(id: ThreadId, runs: UseRuns) -> TaskList:
    """List the tasks of a thread, most recently active first."""
    return TaskList(tasks=tuple(await runs.delegations.list(id)))


@router.get("/threads/{id}/tree")
async def get_tree(id: ThreadId, runs: UseRuns) -> ThreadTree:
    """Get the tree that a thread is in: its root, and the tasks and forks below that."""
    return await runs.delegations.tree_of(id)


@router.get("/tasks/{id}")
async def task_status(id: ThreadId, runs: UseRuns) -> TaskInfo:
    """Get a task."""
    return await runs.delegations.get(id)


@router.get("/tasks/{id}/result")
async def task_result(
    id: ThreadId,
    runs: UseRuns,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT, description="Seconds to wait for the end.")] = 0,
) -> TaskResult:
    """Get the last message of a task's agent, once the task has ended."""
    return await runs.delegations.result(id, wait=wait)


@router.post("/tasks/{id}/cancel")
async def task_cancel(id: ThreadId, runs: UseRuns, cancel: Cancel | None = None) -> TaskInfo:
    """Cancel a task and all tasks below it. A task that has ended is left unchanged."""
    return await runs.delegations.cancel(id, by=None if cancel is None else cancel.by)
