"""The life of a box as a table: the states it can be in, and which may follow which. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.boxes.errors import BoxConflict


class BoxState(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"
    STARTING = "starting"
    DELETING = "deleting"
    DELETED = "deleted"
    """A tombstone: we removed it."""
    GONE = "gone"
    """A tombstone: its provider has it no more, and it was not us."""


TOMBSTONES: Final = frozenset({BoxState.DELETED, BoxState.GONE})
LIVE: Final = frozenset(BoxState) - TOMBSTONES
"""There is, or may be, something at the provider."""
PASSING: Final = frozenset({BoxState.CREATING, BoxState.STOPPING, BoxState.STARTING, BoxState.DELETING})
"""Somebody is at work on the box, or died at it."""
SETTLED: Final = frozenset({BoxState.RUNNING, BoxState.STOPPED})

TRANSITIONS: Final[dict[BoxState, frozenset[BoxState]]] = {
    BoxState.CREATING: frozenset({BoxState.RUNNING, BoxState.DELETING, BoxState.DELETED, BoxState.GONE}),
    # A box can also stop or start by itself: its machine was restarted, its guest died.
    BoxState.RUNNING: frozenset({BoxState.STOPPING, BoxState.STOPPED, BoxState.DELETING, BoxState.GONE}),
    BoxState.STOPPING: frozenset({BoxState.STOPPED, BoxState.RUNNING, BoxState.DELETING, BoxState.GONE}),
    BoxState.STOPPED: frozenset({BoxState.STARTING, BoxState.RUNNING, BoxState.DELETING, BoxState.GONE}),
    BoxState.STARTING: frozenset({BoxState.RUNNING, BoxState.STOPPED, BoxState.DELETING, BoxState.GONE}),
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


_HINTS: Final = {
    BoxState.CREATING: "wait until it is made, and try again",
    BoxState.STOPPING: "wait until it has stopped, and try again",
    BoxState.STARTING: "wait until it has started, and try again",
    BoxState.DELETING: "it is on its way out: acquire or create another",
    BoxState.DELETED: "it is no more: acquire or create another",
    BoxState.GONE: "it is no more: acquire or create another",
}
