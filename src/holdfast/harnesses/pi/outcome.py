"""Decides the outcome of a run of pi. Its exit code does not help: it is 0 even after a provider's error."""

from __future__ import annotations

from holdfast.api.outcomes import outcome_error
from holdfast.harnesses.outcomes import completed, exit_error, failed, model_error, status_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Seen:
    """The output of a run that determines its outcome."""

    __slots__ = ("error", "refused", "settled", "stop", "usage")

    def __init__(
        self,
        *,
        settled: bool = False,
        stop: str | None = None,
        error: str = "",
        refused: str | None = None,
        usage: Mapping[str, float] | None = None,
    ) -> None:
        self.settled = settled
        """It reported that no turn or retry is pending."""
        self.stop = stop
        """Why its last message ended."""
        self.error = error
        """The error of that message."""
        self.refused = refused
        """Why it refused the prompt."""
        self.usage = usage


def decide_outcome(seen: Seen, exit_code: int | None) -> dict[str, Any]:
    if seen.refused is not None:
        return failed(outcome_error("prompt_refused", seen.refused), seen.usage)
    if not seen.settled:
        return failed(exit_error(exit_code), seen.usage)
    if seen.stop in ("stop", "toolUse"):
        return completed(seen.usage)
    if seen.stop == "length":
        return failed(outcome_error("model_cut_off"), seen.usage)
    if seen.stop == "aborted":
        return failed(outcome_error("agent_aborted"), seen.usage)
    if seen.stop == "error":
        return failed(model_error(status_in(seen.error), seen.error), seen.usage)
    return failed(exit_error(exit_code), seen.usage)
