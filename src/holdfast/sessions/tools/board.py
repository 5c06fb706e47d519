"""A list of tasks with dependencies, and the fold of its entries. Pure: `tasks` reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.api.errors import Conflict, NotFound
from holdfast.api.tools.tasks import MOST_BLOCKERS, MOST_TASKS, TaskState

PREFIX: Final = "signal.board."
CREATED: Final = "signal.board.created"
CHANGED: Final = "signal.board.changed"
_TEXTS: Final = ("title", "description", "session", "result")


@dataclass(frozen=True, slots=True)
class BoardTask:
    id: str
    title: str
    by: str
    """The session, or the person, that added it."""
    created_at: int
    changed_at: int
    description: str = ""
    status: TaskState = TaskState.PENDING
    result: str = ""
    session: str | None = None
    """The session that does it."""
    parent: str | None = None
    blocked_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Board:
    tasks: Mapping[str, BoardTask] = field(default_factory=dict)
    """By id, in the order in which they were added."""

    def get(self, id: str) -> BoardTask:
        found = self.tasks.get(id)
        if found is None:
            raise NotFound(f"there is no task {id[:128]!r} on the list of this tree of sessions")
        return found

    def blockers(self, task: BoardTask) -> list[str]:
        """Returns the tasks that a task still waits for."""
        return [each for each in task.blocked_by if self.tasks[each].status is not TaskState.COMPLETED]

    def shown(self, task: BoardTask) -> dict[str, Any]:
        return {
            "id": task.id,
            "title": task.title,
            "description": task.description,
            "status": task.status.value,
            "blocked": bool(self.blockers(task)),
            "blockedBy": list(task.blocked_by),
            "sessionId": task.session,
            "parentTaskId": task.parent,
            "result": task.result,
            "createdBy": task.by,
            "createdAt": task.created_at,
            "updatedAt": task.changed_at,
        }


def with_task(board: Board, task: BoardTask) -> Board:
    """Add a task. Raises if it names tasks that are not there, or is one too many."""
    if len(board.tasks) >= MOST_TASKS:
        raise Conflict(f"there are {MOST_TASKS} tasks, which is the limit")
    if task.parent is not None:
        board.get(task.parent)
    _check_blockers(board, task)
    return replace(board, tasks={**board.tasks, task.id: task})


def with_change(board: Board, task: BoardTask) -> Board:
    """Put a changed task in its place. Raises if it waits for itself, or begins before what it waits for."""
    before = board.get(task.id)
    _check_blockers(board, task)
    changed = replace(board, tasks={**board.tasks, task.id: task})
    begins = task.status in (TaskState.IN_PROGRESS, TaskState.COMPLETED) and task.status is not before.status
    if begins and (waiting := changed.blockers(task)):
        raise Conflict(f"task {task.id} waits for {', '.join(waiting)}, so it cannot be {task.status.value}")
    return changed


def _check_blockers(board: Board, task: BoardTask) -> None:
    pending, seen = list(task.blocked_by), set[str]()
    while pending:
        each = pending.pop()
        if each == task.id:
            raise Conflict(f"task {task.id} would wait for itself: blockedBy must not lead back to it")
        if each in seen:
            continue
        seen.add(each)
        pending += board.get(each).blocked_by


def apply(board: Board, entry: Mapping[str, Any]) -> Board:
    """Returns the list after an entry. Raises if the entry asks for what cannot be."""
    payload = entry["payload"]
    if payload["type"] == CREATED:
        task = BoardTask(str(payload["task"]), str(payload["title"]), str(payload["by"]), entry["ts"], entry["ts"])
        if task.id in board.tasks:
            return board
        return with_task(board, replace(_changed(task, payload), parent=payload.get("parent")))
    if payload["type"] == CHANGED:
        changed = _changed(board.get(str(payload["task"])), payload)
        return with_change(board, replace(changed, changed_at=entry["ts"]))
    return board


def fold(board: Board, entry: Mapping[str, Any]) -> Board:
    """Returns the list after an entry of this server. One that cannot be understood changes nothing."""
    try:
        return apply(board, entry)
    except (Conflict, NotFound, LookupError, TypeError, ValueError):
        return board  # written by another version


def _changed(task: BoardTask, payload: Mapping[str, Any]) -> BoardTask:
    given: dict[str, Any] = {name: payload[name] for name in _TEXTS if isinstance(payload.get(name), str)}
    if "status" in payload:
        given["status"] = TaskState(payload["status"])
    if isinstance(payload.get("blockedBy"), list):
        given["blocked_by"] = tuple(dict.fromkeys(map(str, payload["blockedBy"])))[:MOST_BLOCKERS]
    return replace(task, **given)
