"""How a run of pi ended. Its exit code says nothing: it is 0 after a provider's error too."""

from __future__ import annotations

from holdfast.guest.agent_reader import COMPLETED, FAILED, ended, exit_error, model_error, status_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Seen:
    """What a run of pi said that tells how it ended."""

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
        """Its last word is that nothing goes on by itself: no turn, no retry."""
        self.stop = stop
        """Why its last message ended."""
        self.error = error
        """Of that message."""
        self.refused = refused
        """Why it did not take the prompt."""
        self.usage = usage


def decide_outcome(seen: Seen, exit_code: int | None) -> dict[str, Any]:
    if seen.refused is not None:
        error = {
            "code": "prompt_refused",
            "message": seen.refused,
            "hint": "see what the agent said: holdfast thread show THREAD",
        }
        return ended(FAILED, error, seen.usage)
    if not seen.settled:
        return ended(FAILED, exit_error(exit_code), seen.usage)
    if seen.stop in ("stop", "toolUse"):
        return ended(COMPLETED, None, seen.usage)
    if seen.stop == "length":
        error = {
            "code": "model_cut_off",
            "message": "the model's last answer was cut off by its limit of tokens",
            "hint": "raise the model's limit of tokens, then: holdfast resume THREAD",
        }
        return ended(FAILED, error, seen.usage)
    if seen.stop == "aborted":
        error = {"code": "agent_aborted", "message": "the agent's turn was aborted", "hint": "holdfast resume THREAD"}
        return ended(FAILED, error, seen.usage)
    if seen.stop == "error":
        return ended(FAILED, model_error(status_in(seen.error), seen.error), seen.usage)
    return ended(FAILED, exit_error(exit_code), seen.usage)
