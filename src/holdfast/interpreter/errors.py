"""What can be wrong with an interpreter. Errors of the code that it runs are results, not these."""

from __future__ import annotations


class InterpreterError(Exception):
    """Each class has a code of its own; `hint` says what to do next."""

    code = "interpreter_error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class KernelUnreachable(InterpreterError):
    """The way to the kernel is broken. It may still run."""

    code = "kernel_unreachable"


class KernelLost(InterpreterError):
    """The kernel has ended, and with it all that it had in memory."""

    code = "kernel_lost"


class NoPython(InterpreterError):
    """The box has no Python that a kernel could run on."""

    code = "no_python"


class BudgetExceeded(InterpreterError):
    code = "budget_exceeded"


class CallRefused(InterpreterError):
    """Code in a box asked its host for something that it may not have, or that there is not."""

    code = "call_refused"


class CallFailed(InterpreterError):
    """The host tried what it was asked for, and could not do it."""

    code = "call_failed"


class InvalidSubmission(InterpreterError):
    """SUBMIT was called with something else than the output fields."""

    code = "invalid_submission"


class WorkspaceConflict(InterpreterError):
    """A change of the workspace would lose what is in it."""

    code = "workspace_conflict"


class WorkspaceFailed(InterpreterError):
    """The workspace could not be made as it was asked for. What was in it is still there."""

    code = "workspace_failed"


class ManifestConflict(InterpreterError):
    """The volume has a newer revision of the session."""

    code = "manifest_conflict"


class StateFailed(InterpreterError):
    """A state could not be saved, or what was given is none. What the context has in memory is still there."""

    code = "state_failed"


class TooManyBoxes(InterpreterError):
    """There are as many as may be, and none became free in time."""

    code = "too_many_boxes"


class TooManyChildren(InterpreterError):
    """A child at this depth may have none of its own, or there are as many as one may have."""

    code = "too_many_children"


class CompletionFailed(InterpreterError):
    """A model was asked, and gave no answer."""

    code = "completion_failed"


class InvalidInterpreter(InterpreterError):
    """What was asked for makes no sense."""

    code = "invalid_interpreter"
