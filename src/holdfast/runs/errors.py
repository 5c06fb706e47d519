"""Errors of runs that do not cross the wire, and messages that modules share. The others are in `api/errors/runs`."""

from __future__ import annotations

from holdfast.api.errors.runs import ThreadBusy
from holdfast.api.errors.sessions import IsSession


def thread_busy(thread: str, run: str) -> ThreadBusy:
    return ThreadBusy(
        f"thread {thread} already has a run in progress: {run}",
        hint=f'add to it: holdfast steer {thread} "…"; watch it: holdfast attach {thread};'
        f" end it: holdfast cancel {thread}",
    )


def is_session(thread: str) -> IsSession:
    return IsSession(
        f"thread {thread} is a session, and its queue starts its runs",
        hint=f'send the prompt to it: holdfast session prompt {thread} "…"',
    )


class LaunchFailed(Exception):
    """A step of a launch failed for a reason that no other error class names. It ends the run."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
