"""Decides the outcome of a run of Claude Code from its result. `subtype` is "success" even for a provider's error."""

from __future__ import annotations

from holdfast.api.outcomes import outcome_error
from holdfast.guest.agent_reader import shorten
from holdfast.harnesses.outcomes import completed, exit_error, failed, model_error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_MAX_MESSAGE = 2000


class Seen:
    """The output of a run that determines its outcome."""

    __slots__ = ("refused", "result", "usage")

    def __init__(self, result: Mapping[str, Any] | None = None, usage: Mapping[str, float] | None = None) -> None:
        self.result = result
        """Its last `result` event."""
        self.usage = usage
        self.refused: int | None = None
        """The status with which the provider repeatedly refused its key."""


def decide_outcome(seen: Seen, exit_code: int | None) -> dict[str, Any]:
    result = seen.result
    if seen.refused is not None and (result is None or result.get("subtype") != "success"):
        return failed(model_error(seen.refused, "the provider refuses the key of the model"), seen.usage)
    if result is None:
        return failed(exit_error(exit_code), seen.usage)
    said = _said(result)
    subtype = str(result.get("subtype") or "")
    if str(result.get("terminal_reason") or "").startswith("aborted"):
        return failed(outcome_error("agent_aborted"), seen.usage)
    if subtype == "success" and result.get("is_error"):
        status = result.get("api_error_status")
        return failed(model_error(status if isinstance(status, int) else None, said), seen.usage)
    if subtype != "success":
        return failed(outcome_error("agent_failed", said or subtype), seen.usage)
    if result.get("stop_reason") == "max_tokens":
        return failed(outcome_error("model_cut_off"), seen.usage)
    if result.get("stop_reason") == "refusal":
        return failed(outcome_error("model_declined", said), seen.usage)
    return completed(seen.usage)


def _said(result: Mapping[str, Any]) -> str:
    errors = result.get("errors")
    texts = [result.get("result"), *(errors if isinstance(errors, list) else ())]
    return shorten("; ".join(text for text in texts if isinstance(text, str) and text), _MAX_MESSAGE)
