"""Takes a key out of what a provider answers: some say which key they did not like, and a box must not learn it."""

from __future__ import annotations

from typing import Final

_SHORTEST: Final = 16
"""Shorter ones are no secrets, and may well be words of an answer."""


class Scrubber:
    """Of one answer, piece by piece. A piece is held back only as far as its end could begin the key."""

    def __init__(self, key: str | None) -> None:
        self._key = key.encode() if key is not None and len(key) >= _SHORTEST else None
        self._held = b""

    def text(self, text: str) -> str:
        """A whole text, such as a header."""
        return text if self._key is None else text.replace(self._key.decode(), "*" * len(self._key))

    def feed(self, piece: bytes) -> bytes:
        key = self._key
        if key is None:
            return piece
        data = (self._held + piece).replace(key, b"*" * len(key))
        held = next((size for size in range(min(len(key) - 1, len(data)), 0, -1) if key.startswith(data[-size:])), 0)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """What was held back when the answer ended."""
        held, self._held = self._held, b""
        return held
