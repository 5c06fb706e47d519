"""Errors of interpreters. An error in the code that they run is a result, not one of these."""

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
    """The interpreter lives in the process that created it."""

    code = "interpreter_elsewhere"


class InterpreterWithoutBox(Conflict, InterpreterError):
    """The interpreter exists, but its box is gone."""

    code = "interpreter_without_box"


class InvalidInterpreter(InvalidRequest, InterpreterError):
    """The settings of the interpreter are invalid."""

    status = 422
    code = "invalid_interpreter"


class TooManyInterpreters(TooManyRequests, InterpreterError):
    code = "too_many_interpreters"


class KernelUnreachable(ServerFailed, InterpreterError):
    """The kernel does not answer. It may still run."""

    status = 503
    code = "kernel_unreachable"


class KernelLost(Gone, InterpreterError):
    """The kernel has ended, and its memory is lost."""

    code = "kernel_lost"


class NoPython(InvalidRequest, InterpreterError):
    """The box has no Python for the kernel."""

    status = 422
    code = "no_python"


class ExecutionKnown(Conflict, InterpreterError):
    """This execution has already run, and nothing runs twice."""

    code = "execution_known"


class BudgetExceeded(TooManyRequests, InterpreterError):
    """Code has used up its budget of calls, tokens, cost or time."""

    code = "budget_exceeded"


class CallRefused(Conflict, InterpreterError):
    """Code in a box requested something from its host that is not allowed or does not exist."""

    code = "call_refused"


class CallFailed(Conflict, InterpreterError):
    """The host could not carry out a request of code in a box."""

    code = "call_failed"


class InvalidSubmission(InvalidRequest, InterpreterError):
    """The arguments of SUBMIT do not match the output fields."""

    status = 422
    code = "invalid_submission"


class WorkspaceConflict(Conflict, InterpreterError):
    """A change of the workspace would lose its content."""

    code = "workspace_conflict"


class WorkspaceFailed(ServerFailed, InterpreterError):
    """The workspace could not be changed as requested. Its content is still there."""

    status = 502
    code = "workspace_failed"


class ManifestConflict(Conflict, InterpreterError):
    """The volume has a newer revision of the session."""

    code = "manifest_conflict"


class StateFailed(Conflict, InterpreterError):
    """A state could not be saved or loaded. The memory of the context is unchanged."""

    code = "state_failed"


class TooManyBoxes(TooManyRequests, InterpreterError):
    """The limit of boxes is reached, and none became free in time."""

    code = "too_many_boxes"


class TooManyChildren(Conflict, InterpreterError):
    """Children at this depth cannot have children, or the limit of children is reached."""

    code = "too_many_children"


class CompletionFailed(ServerFailed, InterpreterError):
    """A model did not answer."""

    status = 502
    code = "completion_failed"


class RecordUnwritten(ServerFailed, InterpreterError):
    """An entry could not be written: the thread is gone, or the server is unreachable."""

    status = 503
    code = "record_unwritten"
