"""Removes a secret from what others answer: some quote a wrong key, and neither a box nor a log may show it."""

from __future__ import annotations

from typing import Final

_SHORTEST: Final = 16
"""Shorter ones are not secret, and may occur as words in an answer."""


class Scrubber:
    """For one answer, piece by piece. Holds back only bytes at the end of a piece that could begin the key."""

    def __init__(self, key: str | None) -> None:
        self._key = key.encode() if key is not None and len(key) >= _SHORTEST else None
        self._held = b""

    def text(self, text: str) -> str:
        """Redact a complete text, such as a header."""
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
        """Returns what was held back when the answer ended."""
        held, self._held = self._held, b""
        return held
