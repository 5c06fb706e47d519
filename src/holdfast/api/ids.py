"""Ids: short, sortable by creation time, prefixed by kind (`t-` thread, `e-` entry, `b-` box, `r-` run)."""

from __future__ import annotations

import os
import threading
import time
from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u


_STEP_BACK: Final = 1000
"""If the clock is set back by no more than this many milliseconds, ids still ascend."""


def _base32(value: int, length: int) -> str:
    digits = []
    for _ in range(length):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return "".join(reversed(digits))


def now_ms() -> int:
    """UTC. May jump when the clock is set."""
    return time.time_ns() // 1_000_000


def elapsed_ms() -> int:
    """Monotonic."""
    return time.monotonic_ns() // 1_000_000


class _Sequence:
    """Numbers for ids of one length: random ones, but ascending within a millisecond, and
    while the clock is set back a little. May be used by any thread."""

    def __init__(self, random_digits: int) -> None:
        self._bits = 5 * random_digits
        self.begin_anew()
        os.register_at_fork(after_in_child=self.begin_anew)  # else it makes the same numbers as its parent

    def begin_anew(self) -> None:
        self._lock = threading.Lock()
        self._last = (0, 0)

    def next(self, now: int) -> tuple[int, int]:
        """Returns a time and a number."""
        with self._lock:
            moment, number = self._last
            if not now <= moment < now + _STEP_BACK:
                moment, number = now, _random_bits(self._bits)
            elif number + 1 < 1 << self._bits:
                number += 1
            else:
                moment, number = moment + 1, 0
            self._last = (moment, number)
            return self._last


_sequences: Final = {digits: _Sequence(digits) for digits in (5, 10)}


def new_id(kind: str, *, random_digits: int = 5) -> str:
    """Nine digits of milliseconds, then randomness: ids made later sort later, and never need a round trip.

    Those of one process sort in the order of their making also within a millisecond.
    """
    moment, number = _sequences[random_digits].next(now_ms())
    return f"{kind}-{_base32(moment, 9)}{_base32(number, random_digits)}"


def new_entry_id() -> str:
    return new_id("e", random_digits=10)


def _random_bits(count: int) -> int:
    """Like `secrets.randbits`, without the modules that it loads."""
    return int.from_bytes(os.urandom((count + 7) // 8), "big") >> (-count % 8)
