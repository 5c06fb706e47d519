"""The lifecycle of a box: its states and the allowed transitions. Pure decisions, no effects."""

from __future__ import annotations

from typing import Final

from holdfast.api.box.box import Power
from holdfast.api.box.records import TOMBSTONES, BoxState
from holdfast.api.errors.boxes import BoxConflict

LIVE: Final = frozenset(BoxState) - TOMBSTONES
"""The provider has, or may have, the box."""
PASSING: Final = frozenset(
    {
        BoxState.CREATING,
        BoxState.STOPPING,
        BoxState.STARTING,
        BoxState.HIBERNATING,
        BoxState.WAKING,
        BoxState.MOVING,
        BoxState.DELETING,
    }
)
"""A process is changing the box, or died while it did."""
ASLEEP: Final = frozenset({BoxState.PAUSED, BoxState.HIBERNATED})
"""The next request wakes the box."""
SETTLED: Final = frozenset({BoxState.RUNNING, BoxState.STOPPED}) | ASLEEP
DORMANT: Final = ASLEEP | {BoxState.HIBERNATING, BoxState.WAKING}
"""Asleep, falling asleep or waking. A stopped box in one of these states is hibernated."""
_END: Final = frozenset({BoxState.DELETING, BoxState.GONE})

TRANSITIONS: Final[dict[BoxState, frozenset[BoxState]]] = {
    BoxState.CREATING: frozenset({BoxState.RUNNING, BoxState.DELETING, BoxState.DELETED, BoxState.GONE}),
    # A box can also stop, start or pause without a request: its machine was restarted, or its guest died.
    BoxState.RUNNING: _END
    | {BoxState.STOPPING, BoxState.STOPPED, BoxState.HIBERNATING, BoxState.PAUSED, BoxState.MOVING},
    BoxState.STOPPING: _END | {BoxState.STOPPED, BoxState.RUNNING, BoxState.PAUSED},
    BoxState.STOPPED: _END | {BoxState.STARTING, BoxState.RUNNING, BoxState.PAUSED},
    BoxState.STARTING: _END | {BoxState.RUNNING, BoxState.STOPPED, BoxState.PAUSED},
    BoxState.PAUSED: _END
    | {BoxState.WAKING, BoxState.RUNNING, BoxState.STOPPING, BoxState.HIBERNATING, BoxState.HIBERNATED},
    BoxState.HIBERNATING: _END | {BoxState.HIBERNATED, BoxState.RUNNING, BoxState.PAUSED},
    BoxState.HIBERNATED: _END | {BoxState.WAKING, BoxState.RUNNING, BoxState.STOPPED, BoxState.PAUSED},
    BoxState.WAKING: _END | {BoxState.RUNNING, BoxState.HIBERNATED, BoxState.PAUSED},
    # It is kept or deleted after the move, or used again if the move failed.
    BoxState.MOVING: _END | {BoxState.RUNNING, BoxState.STOPPING, BoxState.STOPPED, BoxState.PAUSED},
    # A box that is being deleted is never used again, even if the deletion fails and is retried.
    BoxState.DELETING: frozenset({BoxState.DELETED}),
    BoxState.DELETED: frozenset(),
    BoxState.GONE: frozenset(),
}


def move(state: BoxState, to: BoxState) -> BoxState:
    """Returns the new state. Raises `BoxConflict` if the table does not allow it."""
    if to not in TRANSITIONS[state]:
        raise BoxConflict(f"a box that is {state} cannot become {to}", hint=_HINTS.get(state))
    return to


def state_of(power: Power, was: BoxState = BoxState.RUNNING) -> BoxState:
    """Returns the state of a box that no process is changing. A sleeping box stays asleep if its machine restarts."""
    match power:
        case Power.RUNNING:
            return BoxState.RUNNING
        case Power.PAUSED:
            return BoxState.PAUSED
        case Power.STOPPED:
            return BoxState.HIBERNATED if was in DORMANT else BoxState.STOPPED


_HINTS: Final = {
    BoxState.CREATING: "wait until it is created, and try again",
    BoxState.STOPPING: "wait until it has stopped, and try again",
    BoxState.STARTING: "wait until it has started, and try again",
    BoxState.HIBERNATING: "wait until it has hibernated, and try again",
    BoxState.WAKING: "wait until it is awake, and try again",
    BoxState.MOVING: "wait until it has moved, and use the new box",
    BoxState.DELETING: "it is being deleted: acquire or create another box",
    BoxState.DELETED: "it was deleted: acquire or create another box",
    BoxState.GONE: "it no longer exists: acquire or create another box",
}
