"""Errors of runs that do not cross the wire, and the message for a busy thread. The others are in `api/errors/runs`."""

from __future__ import annotations

from holdfast.api.errors.runs import ThreadBusy


def thread_busy(thread: str, run: str) -> ThreadBusy:
    return ThreadBusy(
        f"thread {thread} already has a run in progress: {run}",
        hint=f'add to it: holdfast steer {thread} "…"; watch it: holdfast attach {thread};'
        f" end it: holdfast cancel {thread}",
    )


class LaunchFailed(Exception):
    """A step of a launch failed for a reason that no other error class names. It ends the run."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
