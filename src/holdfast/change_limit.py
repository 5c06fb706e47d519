"""How often something in a box may change what stays on the disk of the host."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.api.errors import TooManyRequests

AT_ONCE: Final = 20
SECONDS_EACH: Final = 2
_REMEMBERED: Final = 1024


@dataclass(frozen=True, slots=True)
class Rate:
    """So many changes at once, and then one each time so many seconds have passed."""

    at_once: int = AT_ONCE
    seconds_each: float = SECONDS_EACH


@dataclass(frozen=True, slots=True)
class Allowance:
    """What is left of the changes at once, and when that was counted, in milliseconds."""

    left: float
    at: int


USUAL: Final = Rate()


def spend(allowance: Allowance, now: int, rate: Rate = USUAL) -> Allowance | None:
    """Returns what is left after one more change, or None if it has to wait."""
    regained = max(0, now - allowance.at) / (rate.seconds_each * 1000)
    left = min(float(rate.at_once), allowance.left + regained)
    return Allowance(left - 1, now) if left >= 1 else None


class ChangeLimit:
    """Counts the changes of each session."""

    def __init__(self, clock: Callable[[], int], rate: Rate = USUAL, *, what: str = "this session's tunnels") -> None:
        """`what` changes, for the message."""
        self._clock = clock
        self._rate = rate
        self._what = what
        self._known: OrderedDict[str, Allowance] = OrderedDict()

    def spend(self, session: str) -> None:
        """Count a change. Raises `TooManyRequests` if it has to wait."""
        now = self._clock()
        left = spend(self._known.get(session, Allowance(self._rate.at_once, now)), now, self._rate)
        if left is None:
            raise TooManyRequests(
                f"{self._what} change too often: wait {self._rate.seconds_each:g} seconds before the next change"
            )
        self._known[session] = left
        self._known.move_to_end(session)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
