"""Delegation on threads: a task is a thread that another thread started. Its signals, and what is kept of them.

Only data and pure functions. `holdfast.runs.delegate` acts on tasks. All these signals are sealed: a task, its end and
who was told about it are what the server itself has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.api.run.tasks import BoxMode

DELEGATED: Final = "signal.thread.delegated"
"""On the task's thread, when it is created: who asked, and how it is to be carried out."""
REPORTED: Final = "signal.thread.reported"
"""On the task's thread: its end is on the parent."""
CHILD_STARTED: Final = "signal.thread.child_started"
CHILD_FINISHED: Final = "signal.thread.child_finished"
CHILD_READ: Final = "signal.thread.child_read"
"""On the parent: its agent has asked for the result, and need not be told again."""
TASK_REFUSED: Final = "signal.thread.task_refused"
DELEGATION_SIGNALS: Final = frozenset((DELEGATED, REPORTED, CHILD_STARTED, CHILD_FINISHED, CHILD_READ, TASK_REFUSED))
_CHILD_RESULT: Final = "child-result-"
_MAX_TEXT: Final = 4096
_MAX_OPTIONS: Final = 32 * 1024


@dataclass(frozen=True, slots=True)
class Delegation:
    """What makes a thread the task of another one."""

    parent: str
    root: str
    """The thread at the top of the tree, which has the limits."""
    depth: int
    """1 for a task of the root."""
    agent: str
    model: str
    box: BoxMode
    wake: bool = False
    """Start a run of the parent with the result, if none is in progress."""
    run: str | None = None
    """The run of the parent that asked. If that run is cancelled, so is the task."""
    options: dict[str, Any] = field(default_factory=dict)
    """The options of its first run."""
    told: str | None = None
    """The run whose end was reported to the parent. Until then, the task is open."""

    @property
    def is_open(self) -> bool:
        return self.told is None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Delegation.__slots__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Delegation:
        return cls(**{**value, "box": BoxMode(value["box"])})


def fold_delegation(known: Delegation | None, payload: Mapping[str, Any]) -> Delegation | None:
    """Returns the delegation of a thread after one more signal that the server wrote for this thread."""
    kind = payload["type"]
    if kind == DELEGATED and known is None:
        return _delegated(payload)
    if kind == REPORTED and known is not None and known.is_open and isinstance(payload.get("run"), str):
        return replace(known, told=payload["run"][:_MAX_TEXT])
    return known


def _delegated(payload: Mapping[str, Any]) -> Delegation | None:
    parent, root, depth = payload.get("parent"), payload.get("root"), payload.get("depth")
    agent, model, run = payload.get("agent"), payload.get("model"), payload.get("run")
    options = payload.get("options")
    if not isinstance(parent, str) or not isinstance(root, str) or type(depth) is not int:
        return None
    if not isinstance(agent, str) or not isinstance(model, str):
        return None
    try:
        box = BoxMode(payload.get("box", ""))
    except ValueError:
        return None
    return Delegation(
        parent=parent,
        root=root,
        depth=depth,
        agent=agent,
        model=model,
        box=box,
        wake=payload.get("wake") is True,
        run=run if isinstance(run, str) else None,
        options=options if isinstance(options, dict) and len(repr(options)) <= _MAX_OPTIONS else {},
    )


# --- writing payloads ---


def prompt_id(task: str) -> str:
    return f"task-{task}"


def child_start_id(task: str) -> str:
    return f"child-start-{task}"


def child_end_id(run: str) -> str:
    return f"child-end-{run}"


def child_result_id(run: str) -> str:
    return f"{_CHILD_RESULT}{run}"


def is_child_result(id: str) -> bool:
    """Returns whether this is the id of a prompt with the result of a task. Only the server writes such entries."""
    return id.startswith(_CHILD_RESULT)


def child_read_id(run: str) -> str:
    return f"child-read-{run}"


def reported_id(run: str) -> str:
    return f"reported-{run}"


def delegated(delegation: Delegation) -> dict[str, Any]:
    known = {name: value for name, value in delegation.to_json().items() if name != "told" and value is not None}
    return {"type": DELEGATED, **known, "box": delegation.box.value}


def child_started(task: str, title: str, delegation: Delegation) -> dict[str, Any]:
    by = {} if delegation.run is None else {"run": delegation.run}
    return {
        "type": CHILD_STARTED,
        "child": task,
        "title": title,
        "agent": delegation.agent,
        "box": delegation.box.value,
        "wake": delegation.wake,
        **by,
    }


def child_finished(task: str, run: str, status: str, ms: int, error: Mapping[str, Any] | None) -> dict[str, Any]:
    payload: dict[str, Any] = {"type": CHILD_FINISHED, "child": task, "run": run, "status": status, "ms": ms}
    return payload if error is None else {**payload, "error": dict(error)}


def child_result(task: str, run: str, text: str, *, wake: bool) -> dict[str, Any]:
    """A prompt for the parent. Unless it wakes the parent, it waits for the next prompt and is put before that."""
    payload: dict[str, Any] = {"type": "chat", "role": "user", "text": text, "queued": True, "child": task, "run": run}
    return payload if wake else {**payload, "quiet": True}


def child_read(task: str, run: str) -> dict[str, Any]:
    return {"type": CHILD_READ, "child": task, "run": run}


def reported(parent: str, run: str) -> dict[str, Any]:
    return {"type": REPORTED, "parent": parent, "run": run}


def task_refused(run: str, code: str, message: str) -> dict[str, Any]:
    return {"type": TASK_REFUSED, "run": run, "code": code, "message": message}
