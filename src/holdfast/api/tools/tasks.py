"""The operations on the list of tasks that the sessions of one tree share."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.api.tools.operation import ID, KEY, LIMIT, Field, Operation, ToolGroup, choice, list_of, text

MOST_TASKS: Final = 500
"""Of one tree."""
MOST_BLOCKERS: Final = 32


class TaskState(StrEnum):
    """The status of a task on the list."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


_STATUS: Final = Field("status", "Only tasks with this status.", choice(*TaskState))
_TITLE: Final = text(500)
_TEXT: Final = text(16 * 1024, empty=True)
_BLOCKED_BY: Final = Field(
    "blockedBy", "The ids of tasks that have to be completed before this one can begin.", list_of(ID, MOST_BLOCKERS)
)
_SESSION: Final = Field("sessionId", "The session that does it: this one, or another one of its tree.", ID)

OPERATIONS: Final = (
    Operation(
        name="create_task",
        group=ToolGroup.TASKS,
        route="POST /api/tasks",
        description="Add a task to the list that this session shares with the sessions above and below it.",
        fields=(
            Field("title", "What is to be done.", _TITLE, required=True),
            Field("description", "More about it.", _TEXT),
            _SESSION,
            Field("parentTaskId", "The task that this one is a part of.", ID),
            _BLOCKED_BY,
            KEY,
        ),
        result="task {id, title, description, status, blocked, blockedBy, sessionId, parentTaskId, result, …}",
    ),
    Operation(
        name="list_tasks",
        group=ToolGroup.TASKS,
        route="GET /api/tasks",
        description="List the tasks, in the order in which they were added.",
        fields=(_STATUS, LIMIT),
        result="tasks",
        changes=False,
    ),
    Operation(
        name="update_task",
        group=ToolGroup.TASKS,
        route="PUT /api/tasks/{id}",
        description=(
            "Change a task: its status, its result, who does it, or what it waits for. A task that waits for others can"
            " neither begin nor be completed."
        ),
        fields=(
            Field("id", "The id of the task.", ID, required=True, aliases=("taskId",)),
            Field("status", "Its new status.", choice(*TaskState)),
            Field("result", "What came of it.", _TEXT),
            Field("title", "A new title.", _TITLE),
            Field("description", "A new description.", _TEXT),
            _SESSION,
            _BLOCKED_BY,
        ),
        result="task",
    ),
    Operation(
        name="my_tasks",
        group=ToolGroup.TASKS,
        route="GET /api/my-tasks",
        description="List the tasks of this session.",
        fields=(_STATUS,),
        result="tasks",
        changes=False,
    ),
)
