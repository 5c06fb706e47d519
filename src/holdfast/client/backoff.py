"""How long to wait before a retry. The wait doubles each time up to a cap, with jitter that spreads clients out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _random() -> float:
    import random  # here: most clients never wait

    return random.random()


@dataclass(frozen=True, slots=True)
class Backoff:
    first: float = 0.1
    """Seconds before the first retry."""
    cap: float = 5.0
    """The longest wait in seconds."""
    randomness: Callable[[], float] = _random

    def delay(self, attempt: int, asked: float = 0.0) -> float:
        """Returns the seconds to wait after failure number `attempt` (from 0), at least `asked` but never more than the
        cap.
        """
        ceiling = min(self.cap, self.first * 2.0 ** min(attempt, 32))
        return max(ceiling * (0.5 + self.randomness() / 2), min(asked, self.cap))


@dataclass(frozen=True, slots=True)
class RetryNotice:
    """Passed to `on_retry`: something failed and will be tried again."""

    reason: str
    delay: float
    """Seconds until the next attempt."""
    attempt: int
    """How many attempts have failed so far."""
