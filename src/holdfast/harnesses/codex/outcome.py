"""How a run of Codex ended: by its own last event, else by the way it went."""

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
"""The HTTP status that an error's kind stands for, where Codex gives no number."""


class Seen:
    """What a run of Codex said that tells how it ended."""

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
        """`turn.completed` came."""
        self.failed = failed
        """The message of `turn.failed`."""
        self.cause = cause
        """The `codex_error_info` of the session file, which knows more of a failure than what is printed."""
        self.aborted = aborted
        """The session file says that the turn was interrupted."""
        self.refused = refused
        """The last error before any turn began: a session that is not there, a broken configuration."""
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
    """The provider's words, where the message is the body of its answer: Codex gives a 400 so, without the number."""
    if not message.startswith("{"):
        return None
    try:
        error = json.loads(message)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def status_of(cause: Any, message: str) -> int | None:
    """The HTTP status of a failure: `{"http_connection_failed": {"http_status_code": 401}}`, or a kind by name."""
    if isinstance(cause, str) and cause in _KINDS:
        return _KINDS[cause]
    if isinstance(cause, dict):
        for detail in cause.values():
            status = detail.get("http_status_code") if isinstance(detail, dict) else None
            if isinstance(status, int) and 400 <= status <= 599:
                return status
    return status_in(message)
