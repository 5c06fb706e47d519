"""How the status of a run is shown: one that gives no sign of life is not simply running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from holdfast.cli.terminal.durations import describe_duration

SILENT_SECONDS: Final = 15.0
"""Its runner gives a sign every 5 s."""
_WITH_RUNNER: Final = frozenset(("agent", "event"))
"""Stages of a run whose runner has been heard of."""


def describe_silence(seconds: float) -> str:
    """Empty where that is not long."""
    return "" if seconds < SILENT_SECONDS else f"no heartbeat for {describe_duration(seconds)}"


def describe_status(status: str, run: Mapping[str, Any] | None, now: float) -> str:
    """The status of a run, or of a thread with its latest run, as the server tells it; `now` in seconds."""
    if status != "running" or run is None or run.get("endedAt") is not None or run.get("stage") not in _WITH_RUNNER:
        return status
    silence = describe_silence(now - float(run.get("lastSignAt") or now * 1000) / 1000)
    return f"{status}, {silence}" if silence else status
