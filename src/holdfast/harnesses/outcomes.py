"""What harnesses share to judge how a run ended: by the status of a model's answer, or by an exit code.

Readers use it inside boxes: standard library only, in the syntax of Python 3.9.
"""

from __future__ import annotations

from holdfast.api.outcomes import outcome_error
from holdfast.guest.agent_reader import shorten

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

COMPLETED = "completed"
FAILED = "failed"
_MAX_MESSAGE = 2000
_KILL = 9
_OVER_CONTEXT = (
    "prompt is too long",
    "input is too long",
    "too many tokens",
    "context_length_exceeded",
    "context length",
    "context window",
    "maximum context",
    "request_too_large",
)
_OURS = "Holdfast: "
"""What the model gateway's own refusals begin with: no provider said that."""
_BY_STATUS = {
    401: "model_unauthorized",
    402: "model_unpaid",
    403: "model_unauthorized",
    404: "model_unknown",
    429: "model_rate_limited",
}


def completed(usage: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What `Reader.outcome` returns for a run that did what it was asked."""
    return _ended(COMPLETED, None, usage)


def failed(error: Mapping[str, Any], usage: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What `Reader.outcome` returns for a run that failed. `error` is `{code, message, hint}`."""
    return _ended(FAILED, error, usage)


def _ended(status: str, error: Mapping[str, Any] | None, usage: Mapping[str, float] | None) -> dict[str, Any]:
    outcome: dict[str, Any] = {"status": status}
    if error is not None:
        outcome["error"] = dict(error)
    if usage:
        outcome["usage"] = dict(usage)
    return outcome


def model_error(status: int | None, message: str) -> dict[str, str]:
    """The error of a run that its model's provider ended, by the HTTP status that it answered with."""
    return outcome_error(_model_code(status, message), shorten(message, _MAX_MESSAGE))


def _model_code(status: int | None, message: str) -> str:
    if status == 413 or (status in (None, 400, 422) and is_over_context(message)):
        return "context_exceeded"
    if status is None or status < 400:
        return "model_error"
    if status in (502, 504) and _OURS in message:
        return "model_unreachable"
    return _BY_STATUS.get(status, "model_unavailable" if status >= 500 else "model_refused")


def is_over_context(message: str) -> bool:
    """Whether a provider, or an agent in its place, says that a request is longer than the model's context."""
    said = message.lower()
    return any(words in said for words in _OVER_CONTEXT)


def exit_error(exit_code: int | None) -> dict[str, str]:
    """The error of a run whose agent went away without its last word."""
    if exit_code is None:
        return outcome_error("agent_lost")
    number = -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code <= 192 else 0
    if number == _KILL:
        hint = "was its box out of memory? holdfast thread diagnose THREAD; go on with: holdfast resume THREAD"
        return outcome_error("agent_killed", "the agent was killed (signal 9)", hint)
    if number:
        return outcome_error("agent_killed", f"the agent was ended by signal {number}")
    if exit_code == 0:
        return outcome_error("agent_stopped")
    hint = "see what it said: holdfast thread show THREAD"
    return outcome_error("agent_failed", f"the agent ended with exit code {exit_code}", hint)


def status_in(message: str) -> int | None:
    """The HTTP status that an error message begins with or names, where an agent gives it in words only."""
    words = message[:200].replace(":", " ").replace("(", " ").replace(")", " ").replace(",", " ").split()
    for word in words:
        if len(word) == 3 and word.isdigit() and 400 <= int(word) <= 599:
            return int(word)
    return None
