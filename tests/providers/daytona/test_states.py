"""Every state of a sandbox means something for its box."""

from __future__ import annotations

import pytest
from daytona_api_client_async import SandboxState

from holdfast.api.box.box import Power
from holdfast.providers.daytona.states import PASSING, Phase, phase_of, power_of


@pytest.mark.parametrize("state", SandboxState)
def test_no_state_of_the_sdk_is_forgotten(state: SandboxState) -> None:
    unknown = (SandboxState.UNKNOWN, SandboxState.UNKNOWN_DEFAULT_OPEN_API)
    assert (phase_of(state) is Phase.UNKNOWN) == (state in unknown)


@pytest.mark.parametrize("state", ["levitating", None, ""])
def test_a_state_of_a_later_version_is_unknown(state: object) -> None:
    assert phase_of(state) is Phase.UNKNOWN
    assert power_of(Phase.UNKNOWN) is None


def test_what_runs_and_what_does_not() -> None:
    powers = {state: power_of(phase_of(state)) for state in ("started", "stopped", "archived", "paused", "error")}
    assert powers == {
        "started": Power.RUNNING,
        "stopped": Power.STOPPED,
        "archived": Power.STOPPED,
        "paused": Power.PAUSED,
        "error": Power.STOPPED,
    }
    assert power_of(phase_of("destroyed")) is None
    assert {Phase.RUNNING, Phase.STOPPED, Phase.PAUSED, Phase.FAILED, Phase.GONE}.isdisjoint(PASSING)
