"""The life of a box as a table: the states it can be in, and which may follow which. Pure."""

from __future__ import annotations

from typing import Final

from holdfast.api.boxes import BoxState as BoxState
from holdfast.boxes.box import Power
from holdfast.boxes.errors import BoxConflict

TOMBSTONES: Final = frozenset({BoxState.DELETED, BoxState.GONE})
LIVE: Final = frozenset(BoxState) - TOMBSTONES
"""There is, or may be, something at the provider."""
PASSING: Final = frozenset(
    {
        BoxState.CREATING,
        BoxState.STOPPING,
        BoxState.STARTING,
        BoxState.HIBERNATING,
        BoxState.WAKING,
        BoxState.DELETING,
    }
)
"""Somebody is at work on the box, or died at it."""
ASLEEP: Final = frozenset({BoxState.PAUSED, BoxState.HIBERNATED})
"""The next request wakes it."""
SETTLED: Final = frozenset({BoxState.RUNNING, BoxState.STOPPED}) | ASLEEP
DORMANT: Final = ASLEEP | {BoxState.HIBERNATING, BoxState.WAKING}
"""Asleep, or on its way there or back: what is stopped in such a state is hibernated."""
_END: Final = frozenset({BoxState.DELETING, BoxState.GONE})

TRANSITIONS: Final[dict[BoxState, frozenset[BoxState]]] = {
    BoxState.CREATING: frozenset({BoxState.RUNNING, BoxState.DELETING, BoxState.DELETED, BoxState.GONE}),
    # A box can also stop, start or pause by itself: its machine was restarted, its guest died.
    BoxState.RUNNING: _END | {BoxState.STOPPING, BoxState.STOPPED, BoxState.HIBERNATING, BoxState.PAUSED},
    BoxState.STOPPING: _END | {BoxState.STOPPED, BoxState.RUNNING, BoxState.PAUSED},
    BoxState.STOPPED: _END | {BoxState.STARTING, BoxState.RUNNING, BoxState.PAUSED},
    BoxState.STARTING: _END | {BoxState.RUNNING, BoxState.STOPPED, BoxState.PAUSED},
    BoxState.PAUSED: _END
    | {BoxState.WAKING, BoxState.RUNNING, BoxState.STOPPING, BoxState.HIBERNATING, BoxState.HIBERNATED},
    BoxState.HIBERNATING: _END | {BoxState.HIBERNATED, BoxState.RUNNING, BoxState.PAUSED},
    BoxState.HIBERNATED: _END | {BoxState.WAKING, BoxState.RUNNING, BoxState.STOPPED, BoxState.PAUSED},
    BoxState.WAKING: _END | {BoxState.RUNNING, BoxState.HIBERNATED, BoxState.PAUSED},
    # What is being deleted is never given back, even where deleting has to be tried again.
    BoxState.DELETING: frozenset({BoxState.DELETED}),
    BoxState.DELETED: frozenset(),
    BoxState.GONE: frozenset(),
}


def move(state: BoxState, to: BoxState) -> BoxState:
    """The state to go to, where the table allows it."""
    if to not in TRANSITIONS[state]:
        raise BoxConflict(f"a box that is {state} cannot become {to}", hint=_HINTS.get(state))
    return to


def state_of(power: Power, was: BoxState = BoxState.RUNNING) -> BoxState:
    """The state of a box that nobody is at work on. One that sleeps goes on sleeping when its machine is restarted."""
    match power:
        case Power.RUNNING:
            return BoxState.RUNNING
        case Power.PAUSED:
            return BoxState.PAUSED
        case Power.STOPPED:
            return BoxState.HIBERNATED if was in DORMANT else BoxState.STOPPED


_HINTS: Final = {
    BoxState.CREATING: "wait until it is made, and try again",
    BoxState.STOPPING: "wait until it has stopped, and try again",
    BoxState.STARTING: "wait until it has started, and try again",
    BoxState.HIBERNATING: "wait until it sleeps, and try again",
    BoxState.WAKING: "wait until it is awake, and try again",
    BoxState.DELETING: "it is on its way out: acquire or create another",
    BoxState.DELETED: "it is no more: acquire or create another",
    BoxState.GONE: "it is no more: acquire or create another",
}
