"""Decides the outcome of a run of Codex from its last event, or from its exit."""

from __future__ import annotations

import json

from holdfast.api.outcomes import outcome_error
from holdfast.harnesses.outcomes import completed, exit_error, failed, model_error, status_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_KINDS = {
    "unauthorized": 401,
    "usage_limit_exceeded": 429,
    "server_overloaded": 503,
    "internal_server_error": 500,
    "bad_request": 400,
}
"""HTTP statuses by kind of error, for errors that Codex reports without a number."""


class Seen:
    """The output of a run that determines its outcome."""

    __slots__ = ("aborted", "cause", "completed", "failed", "refused", "usage")

    def __init__(
        self,
        *,
        completed: bool = False,
        failed: str | None = None,
        cause: Any = None,
        aborted: bool = False,
        refused: str = "",
        usage: Mapping[str, float] | None = None,
    ) -> None:
        self.completed = completed
        """Whether `turn.completed` was printed."""
        self.failed = failed
        """The message of `turn.failed`."""
        self.cause = cause
        """The `codex_error_info` of the session file, which has more details than the output."""
        self.aborted = aborted
        """Whether the turn was interrupted, according to the session file."""
        self.refused = refused
        """The last error before the first turn, such as a missing session or a broken configuration."""
        self.usage = usage


def decide_outcome(seen: Seen, exit_code: int | None) -> dict[str, Any]:
    if seen.failed is not None:
        refusal = _refusal(seen.failed)
        if refusal is not None:
            return failed(model_error(400, refusal), seen.usage)
        return failed(model_error(status_of(seen.cause, seen.failed), seen.failed), seen.usage)
    if seen.completed:
        return completed(seen.usage)
    if seen.aborted:
        return failed(outcome_error("agent_aborted"), seen.usage)
    if seen.refused:
        return failed(outcome_error("prompt_refused", seen.refused), seen.usage)
    return failed(exit_error(exit_code), seen.usage)


def _refusal(message: str) -> str | None:
    """Returns the provider's message if this is the body of its answer. Codex reports status 400 that way."""
    if not message.startswith("{"):
        return None
    try:
        error = json.loads(message)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def status_of(cause: Any, message: str) -> int | None:
    """Returns the HTTP status of a failure: `{"http_connection_failed": {"http_status_code": 401}}`, or a kind."""
    if isinstance(cause, str) and cause in _KINDS:
        return _KINDS[cause]
    if isinstance(cause, dict):
        for detail in cause.values():
            status = detail.get("http_status_code") if isinstance(detail, dict) else None
            if isinstance(status, int) and 400 <= status <= 599:
                return status
    return status_in(message)
