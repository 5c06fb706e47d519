"""The values of cookies: 64 hexadecimal digits, whose second half authenticates the first.

A page can plant many cookies of the name of ours in a browser. Those that this server has not made for this place are
told apart without asking the store.
"""

from __future__ import annotations

import hmac
import re
import secrets
from typing import Final

_FORM: Final = re.compile(r"[0-9a-f]{64}")
_HALF: Final = 32


def new_value(key: bytes, place: str) -> str:
    """Returns a new random value for a place."""
    random = secrets.token_hex(_HALF // 2)
    return random + _authenticator(key, place, random)


def is_of(key: bytes, place: str, value: str) -> bool:
    """Whether a value was made with this key for this place. How long that takes tells nothing about the key."""
    if not _FORM.fullmatch(value):
        return False
    return hmac.compare_digest(value[_HALF:], _authenticator(key, place, value[:_HALF]))


def _authenticator(key: bytes, place: str, random: str) -> str:
    return hmac.digest(key, f"{place}\n{random}".encode(), "sha256").hex()[:_HALF]
