"""What the states of a sandbox at Daytona mean for its box. Pure decisions."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.api.box.box import Power


class Phase(StrEnum):
    RUNNING = "running"
    STARTING = "starting"
    """Will run soon."""
    BUSY = "busy"
    """Exists, and does something that ends by itself. It was running or stopped before."""
    STOPPING = "stopping"
    STOPPED = "stopped"
    PAUSED = "paused"
    FAILED = "failed"
    """Neither runs nor stops by itself. Starting it may help."""
    GONE = "gone"
    UNKNOWN = "unknown"
    """A state that Daytona does not know itself, or that we do not know."""


_PHASES: Final = {
    "creating": Phase.STARTING,
    "restoring": Phase.STARTING,
    "pending_build": Phase.STARTING,
    "building_snapshot": Phase.STARTING,
    "pulling_snapshot": Phase.STARTING,
    "starting": Phase.STARTING,
    "resuming": Phase.STARTING,
    "started": Phase.RUNNING,
    "resizing": Phase.BUSY,
    "snapshotting": Phase.BUSY,
    "forking": Phase.BUSY,
    "stopping": Phase.STOPPING,
    "archiving": Phase.STOPPING,
    "pausing": Phase.STOPPING,
    "stopped": Phase.STOPPED,
    "archived": Phase.STOPPED,
    "paused": Phase.PAUSED,
    "error": Phase.FAILED,
    "build_failed": Phase.FAILED,
    "destroying": Phase.GONE,
    "destroyed": Phase.GONE,
    "unknown": Phase.UNKNOWN,
}
PASSING: Final = frozenset({Phase.STARTING, Phase.BUSY, Phase.STOPPING, Phase.UNKNOWN})
"""Phases that another one is expected to follow."""
_POWERS: Final = {
    Phase.RUNNING: Power.RUNNING,
    Phase.STARTING: Power.RUNNING,  # whoever uses it waits for it
    Phase.BUSY: Power.RUNNING,
    Phase.STOPPING: Power.STOPPED,
    Phase.STOPPED: Power.STOPPED,
    Phase.PAUSED: Power.PAUSED,
    Phase.FAILED: Power.STOPPED,  # starting it tells whether it can be helped
}


def phase_of(state: object) -> Phase:
    """Returns the phase of a sandbox in this state: an enum of the SDK, a text, or nothing."""
    return _PHASES.get(str(getattr(state, "value", state)), Phase.UNKNOWN)


def power_of(phase: Phase) -> Power | None:
    """Returns whether a box runs, or None if the phase does not tell."""
    return _POWERS.get(phase)
