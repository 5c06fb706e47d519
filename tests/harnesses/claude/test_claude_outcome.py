"""Every way in which a run of Claude Code was seen to end, and what it is called."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.harnesses.claude.outcome import Seen, decide_outcome


def api_error(status: int | None) -> dict[str, Any]:
    """As it says that: `success`, and an error."""
    return {"subtype": "success", "is_error": True, "api_error_status": status, "result": f"API Error: {status} no"}


@pytest.mark.parametrize(
    ("result", "exit_code", "expected"),
    [
        # it is done
        ({"subtype": "success", "is_error": False, "stop_reason": "end_turn"}, 0, "completed"),
        ({"subtype": "success", "is_error": False}, None, "completed"),
        ({"subtype": "success", "is_error": False}, -9, "completed"),
        # the provider's fault
        (api_error(401), 1, "model_unauthorized"),
        (api_error(400), 1, "model_refused"),
        (api_error(404), 1, "model_unknown"),
        (api_error(429), 1, "model_rate_limited"),
        (api_error(500), 1, "model_unavailable"),
        (api_error(529), 1, "model_unavailable"),
        (api_error(None), 1, "model_error"),
        ({"subtype": "success", "is_error": False, "stop_reason": "max_tokens"}, 0, "model_cut_off"),
        ({"subtype": "success", "is_error": False, "stop_reason": "refusal"}, 0, "model_declined"),
        # ended from outside
        (None, 143, "agent_killed"),
        (None, -9, "agent_killed"),
        (None, -15, "agent_killed"),
        ({"subtype": "error_during_execution", "terminal_reason": "aborted_streaming"}, 0, "agent_aborted"),
        (
            {"subtype": "error_during_execution", "terminal_reason": "aborted_tools", "is_error": True},
            1,
            "agent_aborted",
        ),
        # by itself, but not as it should
        ({"subtype": "error_during_execution", "is_error": True, "errors": ["oh"]}, 1, "agent_failed"),
        ({"subtype": "error_max_turns"}, 1, "agent_failed"),
        ({}, 0, "agent_failed"),
        (None, 1, "agent_failed"),
        (None, 0, "agent_stopped"),
        (None, None, "agent_lost"),
    ],
)
def test_a_run_ends_as(result: dict[str, Any] | None, exit_code: int | None, expected: str) -> None:
    outcome = decide_outcome(Seen(result), exit_code)
    if expected == "completed":
        assert outcome == {"status": "completed"}
    else:
        assert outcome["status"] == "failed"
        assert outcome["error"]["code"] == expected
        assert outcome["error"]["hint"]


def test_what_it_took_is_told_however_it_ended() -> None:
    usage = {"input": 1.0, "output": 2.0, "cacheRead": 0.0, "cacheWrite": 0.0, "cost": 0.5}
    assert decide_outcome(Seen(None, usage), -9)["usage"] == usage
