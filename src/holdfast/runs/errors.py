"""What can be wrong with a run that somebody asks for. They cross the wire as all errors of threads do."""

from __future__ import annotations

from holdfast.threads.errors import StreamConflict, StreamError, StreamNotFound


class RunNotFound(StreamNotFound):
    """No run, and no thread with one, has this id."""

    code = "run_not_found"


class RunOver(StreamConflict):
    """The run has ended, or another runner has it."""

    code = "run_over"


class ThreadBusy(StreamConflict):
    """A run is going on: a thread has one at a time."""

    code = "thread_busy"

    def __init__(self, thread: str, run: str) -> None:
        super().__init__(
            f"run {run} is going on on thread {thread}",
            hint=f'add to it: holdfast steer {thread} "…"; watch it: holdfast attach {thread};'
            f" end it: holdfast cancel {thread}",
        )


class TooManyWaiting(StreamConflict):
    code = "too_many_waiting"


class NothingToResume(StreamConflict):
    """The thread has had no run that could be gone on from."""

    code = "nothing_to_resume"


class InvalidRun(StreamError):
    """What was asked for makes no sense."""

    status = 422
    code = "invalid_run"


class WorkspaceNotFound(StreamNotFound):
    code = "workspace_not_found"


class WorkspaceTooLarge(StreamError):
    status = 413
    code = "too_large"


class NoFiles(StreamConflict):
    """There is no box whose files could be looked at."""

    code = "no_files"


class LaunchFailed(Exception):
    """A step of a launch failed for a reason that is not an error class of somebody's. Ends the run, with this."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
