"""Errors of runs and their workspaces."""

from __future__ import annotations

from holdfast.api.errors import Conflict, InvalidRequest, NotFound


class RunNotFound(NotFound):
    """No run has this id, and no thread with a run does."""

    code = "run_not_found"


class RunOver(Conflict):
    """The run has ended, or another runner has it."""

    code = "run_over"


class ThreadBusy(Conflict):
    """The thread already has a run in progress. It has one at a time."""

    code = "thread_busy"


class TooManyWaiting(Conflict):
    """The limit of prompts that wait for the end of the run is reached."""

    code = "too_many_waiting"


class NothingToResume(Conflict):
    """The thread has no run that can be resumed."""

    code = "nothing_to_resume"


class InvalidRun(InvalidRequest):
    """The settings of the run are invalid."""

    status = 422
    code = "invalid_run"


class WorkspaceNotFound(NotFound):
    code = "workspace_not_found"


class NoFiles(Conflict):
    """There is no box with files to show."""

    code = "no_files"


class TurnNotFound(NotFound):
    """The thread has no such turn, or no such entry."""

    code = "turn_not_found"


class NoCheckpoint(Conflict):
    """The files at the end of the turn are not saved, or no longer."""

    code = "no_checkpoint"


class NothingToUndo(Conflict):
    """The thread was not rewound, or what was before is not saved."""

    code = "nothing_to_undo"


class NotRelated(Conflict):
    """The two threads have no turn in common."""

    code = "not_related"
