"""Decides the outcome of a run of an ACP agent from its answer to the prompt."""

from __future__ import annotations

from holdfast.api.outcomes import outcome_error
from holdfast.guest.agent_reader import shorten
from holdfast.harnesses.outcomes import completed, exit_error, failed, model_error, status_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_AUTHENTICATION = -32000
_MAX_MESSAGE = 2000
_STOPS = {
    "max_tokens": "model_cut_off",
    "max_turn_requests": "agent_out_of_turns",
    "cancelled": "agent_aborted",
}


class Seen:
    """The output of a run that determines its outcome."""

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
        """What failed, if anything: `start`, or a method of the protocol."""
        self.error = error
        self.silent = silent
        """It produced no output in its turn."""
        self.usage = usage


def decide_outcome(seen: Seen, exit_code: int | None) -> dict[str, Any]:
    if seen.stage is not None:
        return failed(_failure(seen.stage, seen.error or {}), seen.usage)
    if seen.stop is None:
        return failed(exit_error(exit_code), seen.usage)
    if seen.stop == "end_turn":
        if seen.silent:  # some agents end like this if they cannot reach their model
            return failed(outcome_error("agent_silent"), seen.usage)
        return completed(seen.usage)
    return failed(_stopped(seen.stop), seen.usage)


def _stopped(stop: str) -> dict[str, str]:
    if stop == "refusal":
        hint = "rephrase the prompt, or use another model"
        return outcome_error("model_refused", "the agent refused to continue", hint)
    if stop in _STOPS:
        return outcome_error(_STOPS[stop])
    return outcome_error("agent_failed", f"the agent stopped: {stop[:100]}", "holdfast resume THREAD")


def _failure(stage: str, error: Mapping[str, Any]) -> Mapping[str, Any]:
    data = error.get("data")
    details = data.get("message") or data.get("details") if isinstance(data, dict) else data
    message = str(error.get("message") or "no reason given")
    if isinstance(details, str) and details not in message:
        message = f"{message}: {details}"
    message = shorten(message, _MAX_MESSAGE)
    if stage == "start":
        return outcome_error("agent_not_found", f"cannot start the agent: {message}")
    if error.get("code") == _AUTHENTICATION:
        return outcome_error("agent_not_logged_in", message)
    status = status_in(message)
    if status is not None:
        return model_error(status, message)
    return outcome_error("agent_failed", message if stage == "session/prompt" else f"{stage}: {message}")
