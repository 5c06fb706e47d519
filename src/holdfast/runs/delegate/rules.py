"""The decisions of delegation, without effects: ids, limits, states and texts."""

from __future__ import annotations

import hashlib
from base64 import b32encode
from collections.abc import Sequence
from typing import Any, Final

from holdfast.api.run.info import RunStatus
from holdfast.api.run.tasks import BoxMode, DelegationLimits, TaskStatus
from holdfast.threads.delegation import Delegation
from holdfast.threads.run_events import Run, ThreadRuns

MAX_RESULT: Final = 32 * 1024
"""Characters of a result that is put on the parent's thread, or returned to an agent. The task's thread has all."""
_LONGEST_TITLE: Final = 80


def task_id(parent: str, key: str) -> str:
    """Returns the id of the task that a thread delegates under this key: always the same one."""
    digest = hashlib.sha256(f"{parent}\n{key}".encode()).digest()
    return f"t-{b32encode(digest).decode().lower()[:20]}"


def title_of(prompt: str) -> str:
    """Returns the first line of a prompt, shortened."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), prompt.strip())
    return line if len(line) <= _LONGEST_TITLE else f"{line[: _LONGEST_TITLE - 1]}…"


def why_not(tasks: Sequence[Delegation], parent: str, depth: int, box: BoxMode, limits: DelegationLimits) -> str | None:
    """Returns why a thread cannot delegate one more task, or None. `tasks` are all tasks of its tree."""
    if depth > limits.depth:
        return f"this thread is {depth - 1} levels below the root of its tree, and the limit is {limits.depth}"
    if sum(each.is_open and each.parent == parent for each in tasks) >= limits.breadth:
        return f"this thread has {limits.breadth} tasks that have not ended, which is the limit"
    if box is not BoxMode.SAME and sum(each.is_open and each.box is not BoxMode.SAME for each in tasks) >= limits.boxes:
        return f"{limits.boxes} tasks of this tree have a box of their own and have not ended, which is the limit"
    if len(tasks) >= limits.threads:
        return f"this tree has had {limits.threads} tasks, which is the limit"
    return None


def status_of(runs: ThreadRuns) -> TaskStatus:
    """Returns the status of a task. It is running until its parent has been told."""
    run = runs.latest
    if run is None:
        return TaskStatus.STARTING
    if run.live or (runs.delegation is not None and runs.delegation.is_open):
        return TaskStatus.RUNNING
    return TaskStatus(run.status.value)


def report_text(task: str, title: str | None, run: Run, result: str) -> str:
    """Returns what the parent is told about the end of a task."""
    name = f"Task {task}" if not title else f'Task {task} ("{title}")'
    error: dict[str, Any] = run.error or {}
    how = {
        RunStatus.COMPLETED: "has completed",
        RunStatus.CANCELLED: "was cancelled",
        RunStatus.ORPHANED: "was cut off",
    }.get(run.status, "has failed")
    why = f": {error['message']}" if run.status is not RunStatus.COMPLETED and error.get("message") else ""
    if not result:
        return f"[{name} {how}{why}. Its agent left no message.]"
    return f"[{name} {how}{why}. The last message of its agent:]\n\n{shorten(result, task)}"


def shorten(result: str, task: str) -> str:
    if len(result) <= MAX_RESULT:
        return result
    return f"{result[:MAX_RESULT]}\n[… {len(result) - MAX_RESULT} more characters are on thread {task} …]"
