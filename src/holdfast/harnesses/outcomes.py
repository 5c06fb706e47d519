"""Shared by harnesses: derives the outcome of a run from the status of a model's answer or from an exit code.

Readers use it inside boxes, so it needs only the standard library and the syntax of Python 3.9.
"""

from __future__ import annotations

from holdfast.api.outcomes import budget_hint, outcome_error
from holdfast.guest.agent_reader import GATEWAY, gateway_words, shorten

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
_BY_STATUS = {
    401: "model_unauthorized",
    402: "model_unpaid",
    403: "model_unauthorized",
    404: "model_unknown",
    429: "model_rate_limited",
}


def completed(usage: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Returns the outcome of a successful run, as `Reader.outcome` returns it."""
    return _ended(COMPLETED, None, usage)


def failed(error: Mapping[str, Any], usage: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Returns the outcome of a failed run, as `Reader.outcome` returns it. `error` is `{code, message, hint}`."""
    return _ended(FAILED, error, usage)


def _ended(status: str, error: Mapping[str, Any] | None, usage: Mapping[str, float] | None) -> dict[str, Any]:
    outcome: dict[str, Any] = {"status": status}
    if error is not None:
        outcome["error"] = dict(error)
    if usage:
        outcome["usage"] = dict(usage)
    return outcome


def model_error(status: int | None, message: str) -> dict[str, str]:
    """Returns the error for a run that failed with this HTTP status of the model's provider."""
    code, words = _model_code(status, message), shorten(gateway_words(message), _MAX_MESSAGE)
    return outcome_error(code, words, budget_hint(words) if code == "over_budget" else "")


def _model_code(status: int | None, message: str) -> str:
    if status == 413 or (status in (None, 400, 422) and is_over_context(message)):
        return "context_exceeded"
    if status is None or status < 400:
        return "model_error"
    if status in (502, 504) and GATEWAY in message:
        return "model_unreachable"
    # For Codex, the gateway refuses with 400, which it does for other reasons, too.
    if GATEWAY in message and (status == 402 or (status == 400 and "budget" in message)):
        return "over_budget"
    return _BY_STATUS.get(status, "model_unavailable" if status >= 500 else "model_refused")


def is_over_context(message: str) -> bool:
    """Returns whether a message of a provider or agent means that a request exceeds the model's context."""
    lower = message.lower()
    return any(words in lower for words in _OVER_CONTEXT)


def exit_error(exit_code: int | None) -> dict[str, str]:
    """Returns the error for a run whose agent ended without a final event."""
    if exit_code is None:
        return outcome_error("agent_lost")
    number = -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code <= 192 else 0
    if number == _KILL:
        hint = "the box may be out of memory: holdfast thread diagnose THREAD; to continue: holdfast resume THREAD"
        return outcome_error("agent_killed", "the agent was killed (signal 9)", hint)
    if number:
        return outcome_error("agent_killed", f"signal {number} ended the agent")
    if exit_code == 0:
        return outcome_error("agent_stopped")
    hint = "see its output: holdfast thread show THREAD"
    return outcome_error("agent_failed", f"the agent ended with exit code {exit_code}", hint)


def status_in(message: str) -> int | None:
    """Returns the HTTP status in an error message, for agents that report it only as text."""
    words = message[:200].replace(":", " ").replace("(", " ").replace(")", " ").replace(",", " ").split()
    for word in words:
        if len(word) == 3 and word.isdigit() and 400 <= int(word) <= 599:
            return int(word)
    return None
