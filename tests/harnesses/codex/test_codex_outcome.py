"""How a run of Codex ended, for every way that was seen."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.harnesses.codex.outcome import Seen, decide_outcome

_STATUS_401 = "unexpected status 401 Unauthorized: no such key, url: http://127.0.0.1:3128/model/v1/responses"


@pytest.mark.parametrize(
    ("seen", "exit_code", "status", "code"),
    [
        pytest.param(Seen(completed=True), 0, "completed", None, id="ok"),
        pytest.param(Seen(completed=True), -9, "completed", None, id="killed while it lingered after its last word"),
        pytest.param(Seen(completed=True), None, "completed", None, id="ok, its exit not seen"),
        pytest.param(
            Seen(failed=_STATUS_401, cause={"http_connection_failed": {"http_status_code": 401}}),
            1,
            "failed",
            "model_unauthorized",
            id="401",
        ),
        pytest.param(Seen(failed=_STATUS_401), 1, "failed", "model_unauthorized", id="401 in words only"),
        pytest.param(
            Seen(failed='{"error":{"message":"not so","type":"invalid_request_error"}}', cause="other"),
            1,
            "failed",
            "model_refused",
            id="400",
        ),
        pytest.param(
            Seen(
                failed="exceeded retry limit, last status: 429 Too Many Requests",
                cause={"response_too_many_failed_attempts": {"http_status_code": 429}},
            ),
            1,
            "failed",
            "model_rate_limited",
            id="429 for ever",
        ),
        pytest.param(
            Seen(failed="We are currently experiencing high demand", cause="internal_server_error"),
            1,
            "failed",
            "model_unavailable",
            id="500 for ever",
        ),
        pytest.param(Seen(failed="stream disconnected"), 1, "failed", "model_error", id="stream cut for ever"),
        pytest.param(Seen(), -15, "failed", "agent_killed", id="SIGTERM"),
        pytest.param(Seen(), 143, "failed", "agent_killed", id="SIGTERM as a shell tells it"),
        pytest.param(Seen(aborted=True), 1, "failed", "agent_aborted", id="SIGINT"),
        pytest.param(Seen(), -9, "failed", "agent_killed", id="SIGKILL"),
        pytest.param(Seen(refused="no rollout found"), 1, "failed", "prompt_refused", id="it would not begin"),
        pytest.param(Seen(), 1, "failed", "agent_failed", id="it said nothing and failed"),
        pytest.param(Seen(), 0, "failed", "agent_stopped", id="it said nothing and ended well"),
        pytest.param(Seen(), None, "failed", "agent_lost", id="nothing is known"),
        pytest.param(Seen(failed="{", cause={"x": 1}), 1, "failed", "model_error", id="words that are no JSON"),
        pytest.param(Seen(failed="", cause=["x"]), 1, "failed", "model_error", id="no words at all"),
    ],
)
def test_a_run_ends_as_its_last_word_says(seen: Seen, exit_code: int | None, status: str, code: str | None) -> None:
    outcome: dict[str, Any] = decide_outcome(seen, exit_code)
    assert outcome["status"] == status
    assert outcome.get("error", {}).get("code") == code
    if code is not None:
        assert outcome["error"]["message"]
        assert outcome["error"]["hint"]
