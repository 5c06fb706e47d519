"""Every way in which a run of pi was seen to end, and what it is called."""

from __future__ import annotations

import pytest

from holdfast.harnesses.pi.outcome import Seen, decide_outcome


@pytest.mark.parametrize(
    ("seen", "exit_code", "expected"),
    [
        # it is done
        (Seen(settled=True, stop="stop"), 0, "completed"),
        (Seen(settled=True, stop="stop"), None, "completed"),
        (Seen(settled=True, stop="stop"), -9, "completed"),
        (Seen(settled=True, stop="toolUse"), 0, "completed"),
        # the provider's fault: its exit code is 0
        (Seen(settled=True, stop="error", error="401: not today"), 0, "model_unauthorized"),
        (Seen(settled=True, stop="error", error="403 forbidden"), 0, "model_unauthorized"),
        (Seen(settled=True, stop="error", error="400 bad"), 0, "model_refused"),
        (Seen(settled=True, stop="error", error="402 pay first"), 0, "model_unpaid"),
        (Seen(settled=True, stop="error", error="404 no such model"), 0, "model_unknown"),
        (Seen(settled=True, stop="error", error="429: too many"), 0, "model_rate_limited"),
        (Seen(settled=True, stop="error", error="500: oops"), 0, "model_unavailable"),
        (Seen(settled=True, stop="error", error='529 {"type":"error"}'), 0, "model_unavailable"),
        (Seen(settled=True, stop="error", error="terminated"), 0, "model_error"),
        (Seen(settled=True, stop="error"), 0, "model_error"),
        (Seen(settled=True, stop="length"), 0, "model_cut_off"),
        # in the middle of a stream that was cut, it tries again: killed there, it is not done
        (Seen(settled=False, stop="error", error="terminated"), -9, "agent_killed"),
        # ended from outside
        (Seen(settled=False), 143, "agent_killed"),
        (Seen(settled=False, stop="toolUse"), 143, "agent_killed"),
        (Seen(settled=False), -2, "agent_killed"),
        (Seen(settled=False), -9, "agent_killed"),
        (Seen(settled=True, stop="aborted"), 0, "agent_aborted"),
        # by itself, but not as it should
        (Seen(settled=False), 1, "agent_failed"),
        (Seen(settled=False), 0, "agent_stopped"),
        (Seen(settled=False), None, "agent_lost"),
        (Seen(settled=True), 0, "agent_stopped"),
        (Seen(settled=True, stop="something new"), 0, "agent_stopped"),
        (Seen(refused="no model"), 0, "prompt_refused"),
    ],
)
def test_a_run_ends_as(seen: Seen, exit_code: int | None, expected: str) -> None:
    outcome = decide_outcome(seen, exit_code)
    if expected == "completed":
        assert outcome == {"status": "completed"}
    else:
        assert outcome["status"] == "failed"
        assert outcome["error"]["code"] == expected
        assert outcome["error"]["message"]
        assert outcome["error"]["hint"]


def test_what_it_took_is_told_however_it_ended() -> None:
    usage = {"input": 1.0, "output": 2.0, "cacheRead": 0.0, "cacheWrite": 0.0, "cost": 0.5}
    assert decide_outcome(Seen(settled=True, stop="stop", usage=usage), 0)["usage"] == usage
    assert decide_outcome(Seen(usage=usage), -9)["usage"] == usage
