"""Errors of interpreters. What the code that they run does wrong is a result, not one of these."""

from __future__ import annotations

from holdfast.api.errors import Conflict, Gone, InvalidRequest, NotFound, Refused, ServerFailed, TooManyRequests


class InterpreterError(Refused):
    """The base of errors of interpreters."""

    status = 409
    code = "interpreter_error"


class InterpreterNotFound(NotFound, InterpreterError):
    code = "interpreter_not_found"


class InterpreterDeleted(Gone, InterpreterError):
    code = "interpreter_deleted"


class InterpreterElsewhere(Conflict, InterpreterError):
    """The interpreter lives in the process that made it."""

    code = "interpreter_elsewhere"


class InvalidInterpreter(InvalidRequest, InterpreterError):
    """The interpreter that was asked for makes no sense."""

    status = 422
    code = "invalid_interpreter"


class TooManyInterpreters(TooManyRequests, InterpreterError):
    code = "too_many_interpreters"


class KernelUnreachable(ServerFailed, InterpreterError):
    """The kernel does not answer. It may still run."""

    status = 503
    code = "kernel_unreachable"


class KernelLost(Gone, InterpreterError):
    """The kernel has ended, and all that it had in memory is lost."""

    code = "kernel_lost"


class NoPython(InvalidRequest, InterpreterError):
    """The box has no Python that a kernel could run on."""

    status = 422
    code = "no_python"


class ExecutionKnown(Conflict, InterpreterError):
    """This execution has run already, and nothing runs twice."""

    code = "execution_known"


class BudgetExceeded(TooManyRequests, InterpreterError):
    """Code has used up the calls, tokens, cost or time that it may use."""

    code = "budget_exceeded"


class CallRefused(Conflict, InterpreterError):
    """Code in a box asked its host for something that it may not have, or that does not exist."""

    code = "call_refused"


class CallFailed(Conflict, InterpreterError):
    """The host tried what code in a box asked for, and could not do it."""

    code = "call_failed"


class InvalidSubmission(InvalidRequest, InterpreterError):
    """SUBMIT was called with something else than the output fields."""

    status = 422
    code = "invalid_submission"


class WorkspaceConflict(Conflict, InterpreterError):
    """A change of the workspace would lose what is in it."""

    code = "workspace_conflict"


class WorkspaceFailed(ServerFailed, InterpreterError):
    """The workspace could not be made as it was asked for. What was in it is still there."""

    status = 502
    code = "workspace_failed"


class ManifestConflict(Conflict, InterpreterError):
    """The volume has a newer revision of the session."""

    code = "manifest_conflict"


class StateFailed(Conflict, InterpreterError):
    """A state could not be saved or loaded. What the context has in memory is still there."""

    code = "state_failed"


class TooManyBoxes(TooManyRequests, InterpreterError):
    """There are as many boxes as there may be, and none became free in time."""

    code = "too_many_boxes"


class TooManyChildren(Conflict, InterpreterError):
    """A child at this depth may have no children of its own, or there are as many as one may have."""

    code = "too_many_children"


class CompletionFailed(ServerFailed, InterpreterError):
    """A model was asked, and gave no answer."""

    status = 502
    code = "completion_failed"


class RecordUnwritten(ServerFailed, InterpreterError):
    """What was noted is not on the thread: the thread is gone, or the server is away."""

    status = 503
    code = "record_unwritten"
