"""Decides the outcome of a run of OpenCode from the events of its server, or from its exit."""

from __future__ import annotations

from holdfast.api.outcomes import outcome_error
from holdfast.harnesses.outcomes import completed, exit_error, failed, model_error, status_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_WORDS = (
    ("rate limit", 429),
    ("too many requests", 429),
    ("quota", 429),
    ("overloaded", 503),
    ("internal server error", 500),
    ("unavailable", 503),
)
"""HTTP statuses by message. While OpenCode retries, it reports no number."""


class Seen:
    """The output of a run that determines its outcome."""

    __slots__ = ("aborted", "error", "gave_up", "over", "refused", "stop", "usage")

    def __init__(
        self,
        *,
        over: bool = False,
        error: Mapping[str, Any] | None = None,
        aborted: bool = False,
        gave_up: str | None = None,
        refused: str | None = None,
        stop: str | None = None,
        usage: Mapping[str, float] | None = None,
    ) -> None:
        self.over = over
        """Whether the session became idle."""
        self.error = error
        """The last `session.error`: `{name, data: {message, statusCode}}`."""
        self.aborted = aborted
        """Whether that error is an abort."""
        self.gave_up = gave_up
        """Why requests to the model failed until the driver ended the turn."""
        self.refused = refused
        """Why the prompt was refused, or the server did not start."""
        self.stop = stop
        """Why the model's last message ended."""
        self.usage = usage


def decide_outcome(seen: Seen, exit_code: int | None) -> dict[str, Any]:
    if seen.gave_up is not None:
        return failed(model_error(_status_of(seen.gave_up), seen.gave_up), seen.usage)
    if seen.error is not None:
        data = seen.error.get("data")
        data = data if isinstance(data, dict) else {}
        message = str(data.get("message") or seen.error.get("name") or "")
        status = data.get("statusCode")
        known = status if isinstance(status, int) else _status_of(message)
        return failed(model_error(known, message), seen.usage)
    if seen.aborted:
        return failed(outcome_error("agent_aborted"), seen.usage)
    if seen.refused is not None:
        return failed(outcome_error("prompt_refused", seen.refused), seen.usage)
    if not seen.over:
        return failed(exit_error(exit_code), seen.usage)
    if seen.stop == "length":
        return failed(outcome_error("model_cut_off"), seen.usage)
    return completed(seen.usage)


def _status_of(message: str) -> int | None:
    status = status_in(message)
    if status is not None:
        return status
    lower = message[:1000].lower()
    return next((number for words, number in _WORDS if words in lower), None)
