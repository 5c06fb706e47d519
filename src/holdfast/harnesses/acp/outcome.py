"""How a run of an ACP agent ended: by what it answered the prompt with."""

from __future__ import annotations

from holdfast.guest.agent_reader import COMPLETED, FAILED, ended, exit_error, model_error, shorten, status_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_AUTHENTICATION = -32000
_MAX_MESSAGE = 2000
_STOPS = {
    "max_tokens": (
        "model_cut_off",
        "the model's last answer was cut off by its limit of tokens",
        "raise the model's limit of tokens, then: holdfast resume THREAD",
    ),
    "max_turn_requests": (
        "agent_out_of_turns",
        "the agent has asked its model as often as it may in one turn",
        "let it go on: holdfast resume THREAD",
    ),
    "refusal": ("model_refused", "the agent refused to go on", "say it in other words, or use another model"),
    "cancelled": ("agent_aborted", "the agent's turn was aborted", "holdfast resume THREAD"),
}


class Seen:
    """What a run said that tells how it ended."""

    __slots__ = ("error", "silent", "stage", "stop", "usage")

    def __init__(
        self,
        *,
        stop: str | None = None,
        stage: str | None = None,
        error: Mapping[str, Any] | None = None,
        silent: bool = False,
        usage: Mapping[str, float] | None = None,
    ) -> None:
        self.stop = stop
        """Why its turn ended."""
        self.stage = stage
        """What failed, where something did: `start`, or a method of the protocol."""
        self.error = error
        self.silent = silent
        """It said and did nothing in its turn."""
        self.usage = usage


def decide_outcome(seen: Seen, exit_code: int | None) -> dict[str, Any]:
    if seen.stage is not None:
        return ended(FAILED, _failure(seen.stage, seen.error or {}), seen.usage)
    if seen.stop is None:
        return ended(FAILED, exit_error(exit_code), seen.usage)
    if seen.stop == "end_turn":
        if seen.silent:  # so some agents end when their model cannot be reached
            hint = "check the model (holdfast model test NAME), and how the agent is told to reach it"
            return ended(FAILED, _error("agent_silent", "the agent said and did nothing", hint), seen.usage)
        return ended(COMPLETED, None, seen.usage)
    known = _STOPS.get(seen.stop, ("agent_failed", f"the agent stopped: {seen.stop[:100]}", "holdfast resume THREAD"))
    return ended(FAILED, _error(*known), seen.usage)


def _failure(stage: str, error: Mapping[str, Any]) -> Mapping[str, Any]:
    data = error.get("data")
    details = data.get("message") or data.get("details") if isinstance(data, dict) else data
    message = str(error.get("message") or "it gave no reason")
    if isinstance(details, str) and details not in message:
        message = f"{message}: {details}"
    message = shorten(message, _MAX_MESSAGE)
    if stage == "start":
        return _error("agent_not_found", f"the agent cannot be started: {message}", "install it in the box first")
    if error.get("code") == _AUTHENTICATION:
        return _error("agent_not_logged_in", message, "log the agent in, in its box, or give it a key")
    status = status_in(message)
    if status is not None:
        return model_error(status, message)
    hint = "see what the agent said: holdfast thread show THREAD"
    return _error("agent_failed", message if stage == "session/prompt" else f"{stage}: {message}", hint)


def _error(code: str, message: str, hint: str) -> dict[str, str]:
    return {"code": code, "message": message, "hint": hint}
