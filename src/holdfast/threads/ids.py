"""Ids: short, sortable by time of making, prefixed by kind (`t-` thread, `e-` entry, `b-` box, `r-` run)."""

from __future__ import annotations

import secrets
import time
from typing import Final

_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u


def _base32(value: int, length: int) -> str:
    digits = []
    for _ in range(length):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return "".join(reversed(digits))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_id(kind: str, *, random_digits: int = 5) -> str:
    """Nine digits of milliseconds, then randomness: ids made later sort later, and never need a round trip."""
    return f"{kind}-{_base32(now_ms(), 9)}{_base32(secrets.randbits(5 * random_digits), random_digits)}"


def new_entry_id() -> str:
    return new_id("e", random_digits=10)
