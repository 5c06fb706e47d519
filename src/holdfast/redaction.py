"""Removes a secret from what others answer: some quote a wrong key, and neither a box nor a log may show it."""

from __future__ import annotations

from typing import Final

_SHORTEST: Final = 16
"""Shorter ones are not secret, and may occur as words in an answer."""


class Scrubber:
    """For one answer, piece by piece. Holds back only bytes at the end of a piece that could begin a key."""

    def __init__(self, *keys: str | None) -> None:
        known = {key.encode() for key in keys if key is not None and len(key) >= _SHORTEST}
        self._keys = sorted(known, key=len, reverse=True)  # a key can be part of another
        self._held = b""

    def text(self, text: str) -> str:
        """Redact a complete text, such as a header."""
        for key in self._keys:
            text = text.replace(key.decode(), "*" * len(key))
        return text

    def feed(self, piece: bytes) -> bytes:
        if not self._keys:
            return piece
        data = self._held + piece
        for key in self._keys:
            data = data.replace(key, b"*" * len(key))
        held = max(_begun(key, data) for key in self._keys)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """Returns what was held back when the answer ended."""
        held, self._held = self._held, b""
        return held


def _begun(key: bytes, data: bytes) -> int:
    """Returns how many of the last bytes could begin the key."""
    at = data.find(key[:1], max(0, len(data) - len(key) + 1))
    while at >= 0 and not key.startswith(data[at:]):
        at = data.find(key[:1], at + 1)
    return 0 if at < 0 else len(data) - at
