"""Encrypts keys at rest, bound to their name and endpoints. A copy of the database reveals none."""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE: Final = 12
_VERSION: Final = b"\x01"


class CannotUnseal(Exception):
    """It was encrypted with another secret or for another purpose, or is damaged."""


class Seal:
    """AES-256-GCM with a separate key. Data encrypted for one purpose cannot be decrypted for another."""

    def __init__(self, secret: bytes) -> None:
        self._cipher = AESGCM(secret)

    def close(self, text: str, purpose: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        return _VERSION + nonce + self._cipher.encrypt(nonce, text.encode(), purpose.encode())

    def open(self, sealed: bytes, purpose: str) -> str:
        """Raises `CannotUnseal`."""
        if sealed[:1] != _VERSION:
            raise CannotUnseal("encrypted in a format that this version does not support")
        nonce, content = sealed[1 : 1 + _NONCE], sealed[1 + _NONCE :]
        try:
            return self._cipher.decrypt(nonce, content, purpose.encode()).decode()
        except (InvalidTag, ValueError):
            raise CannotUnseal("sealed with another secret, or for another purpose") from None
