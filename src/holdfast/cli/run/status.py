"""Describes the status of a run, including how long a running one has been silent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.cli.terminal.durations import describe_duration

if TYPE_CHECKING:
    from holdfast.api.run.info import RunInfo

SILENT_SECONDS: Final = 15.0
"""A runner sends a heartbeat every 5 s."""
_WITH_RUNNER: Final = frozenset(("agent", "event"))
"""Stages in which the runner sends heartbeats."""


def describe_silence(seconds: float) -> str:
    """Empty if the silence is short."""
    return "" if seconds < SILENT_SECONDS else f"no heartbeat for {describe_duration(seconds)}"


def describe_status(status: str, run: RunInfo | None, now: float) -> str:
    """Describe the status of a run, or of a thread with its latest run. `now` is in seconds."""
    if status != "running" or run is None or run.ended_at is not None or run.stage not in _WITH_RUNNER:
        return status
    silence = describe_silence(now - run.last_sign_at / 1000)
    return f"{status}, {silence}" if silence else status
