"""How often a box may change something on its session's thread, which stays on the disk of the host."""

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
class Allowance:
    """What is left of the changes at once, and when that was counted, in milliseconds."""

    left: float
    at: int


def spend(allowance: Allowance, now: int) -> Allowance | None:
    """Returns what is left after one more change, or None if it has to wait."""
    regained = max(0, now - allowance.at) / (SECONDS_EACH * 1000)
    left = min(float(AT_ONCE), allowance.left + regained)
    return Allowance(left - 1, now) if left >= 1 else None


class ChangeLimit:
    """Counts the changes of each session: `AT_ONCE`, and then one every `SECONDS_EACH`."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._known: OrderedDict[str, Allowance] = OrderedDict()

    def spend(self, session: str) -> None:
        """Count a change. Raises `TooManyRequests` if it has to wait."""
        now = self._clock()
        left = spend(self._known.get(session, Allowance(AT_ONCE, now)), now)
        if left is None:
            raise TooManyRequests(
                f"this session's tunnels change too often: wait {SECONDS_EACH} seconds before the next change"
            )
        self._known[session] = left
        self._known.move_to_end(session)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
