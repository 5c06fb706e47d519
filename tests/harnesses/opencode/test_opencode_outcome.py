"""How a run of OpenCode ended, for every way that was seen."""

from __future__ import annotations

import pytest

from holdfast.harnesses.opencode.outcome import Seen, decide_outcome

_REFUSED = {"name": "APIError", "data": {"message": "no such key", "statusCode": 401, "isRetryable": False}}
_BAD = {"name": "APIError", "data": {"message": "not so", "statusCode": 400, "isRetryable": False}}
_STRANGE = {"name": "UnknownError", "data": 7}


@pytest.mark.parametrize(
    ("seen", "exit_code", "status", "code"),
    [
        pytest.param(Seen(over=True, stop="stop"), 0, "completed", None, id="ok"),
        pytest.param(Seen(over=True, stop="stop"), -9, "completed", None, id="killed after its last word"),
        pytest.param(Seen(over=True, error=_REFUSED), 0, "failed", "model_unauthorized", id="401"),
        pytest.param(Seen(over=True, error=_BAD), 0, "failed", "model_refused", id="400"),
        pytest.param(
            Seen(over=True, gave_up="Rate limit reached", aborted=True), 0, "failed", "model_rate_limited", id="429"
        ),
        pytest.param(
            Seen(over=True, gave_up="Internal server error"), 0, "failed", "model_unavailable", id="500 for ever"
        ),
        pytest.param(Seen(over=True, gave_up="status 529: busy"), 0, "failed", "model_unavailable", id="529 in words"),
        pytest.param(Seen(over=True, gave_up="odd"), 0, "failed", "model_error", id="no status known"),
        pytest.param(Seen(over=True, stop="unknown"), 0, "completed", None, id="stream cut, asked again"),
        pytest.param(Seen(), -15, "failed", "agent_killed", id="SIGTERM"),
        pytest.param(Seen(), -2, "failed", "agent_killed", id="SIGINT"),
        pytest.param(Seen(), -9, "failed", "agent_killed", id="SIGKILL"),
        pytest.param(Seen(over=True, aborted=True), 0, "failed", "agent_aborted", id="abort"),
        pytest.param(Seen(refused="no such session"), 1, "failed", "prompt_refused", id="it would not begin"),
        pytest.param(Seen(over=True, stop="length"), 0, "failed", "model_cut_off", id="cut off by its limit"),
        pytest.param(Seen(over=True, error=_STRANGE), 0, "failed", "model_error", id="an error of a strange shape"),
        pytest.param(Seen(), 1, "failed", "agent_failed", id="it said nothing and failed"),
        pytest.param(Seen(), 0, "failed", "agent_stopped", id="it said nothing and ended well"),
        pytest.param(Seen(), None, "failed", "agent_lost", id="nothing is known"),
    ],
)
def test_a_run_ends_as_its_last_word_says(seen: Seen, exit_code: int | None, status: str, code: str | None) -> None:
    outcome = decide_outcome(seen, exit_code)
    assert outcome["status"] == status
    assert outcome.get("error", {}).get("code") == code
    if code is not None:
        assert outcome["error"]["message"]
        assert outcome["error"]["hint"]
