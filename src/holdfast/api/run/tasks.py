"""Tasks: threads that another thread has started, and the tools by which an agent delegates. Times are UTC
milliseconds.

The tools are defined here once. An agent in a box sees them by MCP or an extension; the REST API, the client and the
command line offer the same operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final

from holdfast.api.document import Document, Limits
from holdfast.api.errors import InvalidRequest
from holdfast.api.limits import AgentName, ModelName, ModelNames, Printable, PromptText, StrictBool, Title
from holdfast.api.run.info import RunError

MAX_WAIT: Final = 45
"""Seconds that one request for a result may wait. Agents give up on tools after about a minute."""


class BoxMode(StrEnum):
    """The box of a task."""

    OWN = "own"
    """A new box like that of the parent, with the files that the parent's workspace started with."""
    FORK = "fork"
    """A new box with all files of the parent's box as they are when it is made."""
    SAME = "same"
    """The box of the parent. Both see each other's files and processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationLimits(Document):
    """The limits of a tree of tasks. A request beyond them is refused."""

    depth: int = 8
    """Levels of tasks below the root."""
    breadth: int = 16
    """Open tasks of one thread."""
    boxes: int = 16
    """Open tasks in a tree that have a box of their own."""
    threads: int = 200
    """Tasks in a tree, ended ones included. They keep their threads and boxes until they are deleted."""

    @classmethod
    def parse(cls, text: str) -> DelegationLimits:
        """Read limits that differ from the defaults: `depth=2 boxes=4`. Raises `InvalidRequest`."""
        given: dict[str, int] = {}
        for setting in text.split():
            name, _, value = setting.partition("=")
            is_number = value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS
            if name in given or name not in _HIGHEST or not is_number or int(value) > _HIGHEST[name]:
                most = ", ".join(f"{each} up to {number}" for each, number in _HIGHEST.items())
                raise InvalidRequest(
                    f"invalid limit of delegation {setting[:100]!r}", hint=f"write NAME=NUMBER: {most}"
                )
            given[name] = int(value)
        return cls(**given)


_HIGHEST: Final = {"depth": 32, "breadth": 1000, "boxes": 1000, "threads": 1000}
_MOST_DIGITS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask(Document):
    prompt: PromptText
    title: Title | None = None
    agent: AgentName | None = None
    """Defaults to the agent of the thread."""
    model: ModelName | None = None
    """Defaults to the model of the thread. Only a caller with an API key can choose another."""
    fallbacks: ModelNames = ()
    """Models to use if `model` gives no answer, in order. Defaults to those of the thread, unless there is a model."""
    box: BoxMode = BoxMode.OWN
    wake: StrictBool = False
    """Start a run of the thread with the result, if none is in progress then."""
    key: Printable | None = None
    """A second request with the same key, on the same thread, returns the first one's task."""
    author_id: Printable | None = None


class TaskStatus(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo(Document):
    """A task at the time of the request. Its id is that of its thread."""

    id: str
    title: str | None
    parent: str
    root: str
    depth: int
    status: TaskStatus
    agent: str
    model: str
    box: BoxMode
    wake: bool
    run: str | None
    """Its latest run."""
    open_tasks: int
    """Its own tasks that have not ended."""
    reported: bool
    """Whether its end is on the parent's thread."""
    created_at: int
    ended_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult(Document):
    id: str
    status: TaskStatus
    result: str | None
    """The last message of its agent. None until it has ended."""
    error: RunError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList(Document):
    tasks: tuple[TaskInfo, ...]
    """Most recently active first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeThread(Document):
    """One thread of a tree."""

    id: str
    title: str | None
    status: str
    parent: str | None
    """The thread that delegated it. None for the root of the tree, and for forks."""
    fork_of: str | None
    """The thread that it was forked from."""
    task: bool
    """Whether it is a task of its parent."""
    agent: str | None
    last_activity_at: int
    live: bool
    """Whether a run is in progress, about to start, or not reported yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadTree(Document):
    root: str
    threads: tuple[TreeThread, ...]
    """Parents come before their children."""
    truncated: bool
    """Whether there are more."""


Seconds = Annotated[float, Limits(ge=0, le=MAX_WAIT, allow_inf_nan=False)]

# --- the tools of agents ---


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDefinition(Document):
    name: str
    description: str
    input_schema: dict[str, Any]
    """JSON schema of its arguments."""


_TASK: Final = {"task": {"type": "string", "description": "The id that delegate_task returned."}}


def _schema(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TOOLS: Final = (
    ToolDefinition(
        name="delegate_task",
        description=(
            "Start another agent on a task, in the background. Returns the task's id at once. The other agent does not"
            " see this conversation, so the prompt has to say everything it needs to know. Ask for the result with"
            " task_result. You are also given it with your next prompt; with wake, a turn is started for that."
        ),
        input_schema=_schema(
            ("prompt",),
            prompt={"type": "string", "description": "What the other agent is to do, and what to report."},
            title={"type": "string", "description": "A few words, for people. Default: the prompt's first line."},
            agent={"type": "string", "description": "pi, claude, codex or opencode. Default: the same as you."},
            box={
                "type": "string",
                "enum": [each.value for each in BoxMode],
                "description": (
                    "Where it works. own: in a new machine with the files that your workspace started with (default)."
                    " fork: in a copy of your machine with all files as they are now; its changes stay there. same: in"
                    " your machine, with your files."
                ),
            },
            wake={
                "type": "boolean",
                "description": "If your turn is over when the task ends, start a new turn with its result. Default:"
                " false.",
            },
            key={
                "type": "string",
                "description": "Any name. A second call with the same key returns the first one's task.",
            },
        ),
    ),
    ToolDefinition(
        name="task_status",
        description="Say how a task is: starting, running, completed, failed, cancelled or orphaned (its machine died)",
        input_schema=_schema(("task",), **_TASK),
    ),
    ToolDefinition(
        name="task_result",
        description=(
            "Return the last message of a task's agent, once it has ended. Waits for the end for a while; if the status"
            " is still running, do something else and call it again."
        ),
        input_schema=_schema(
            ("task",),
            **_TASK,
            wait={
                "type": "number",
                "minimum": 0,
                "maximum": MAX_WAIT,
                "description": f"Seconds to wait for the end, at most {MAX_WAIT}. Default: 30.",
            },
        ),
    ),
    ToolDefinition(
        name="task_cancel",
        description="End a task, and the tasks that it has started.",
        input_schema=_schema(("task",), **_TASK),
    ),
)
