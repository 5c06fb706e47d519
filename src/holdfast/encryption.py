"""Keeps secrets secret: encrypted at rest, and not sent over the internet in plain text.

What is encrypted is bound to its purpose: the name of a model and its endpoints, for example. A copy of the database
reveals nothing.
"""

from __future__ import annotations

import ipaddress
import secrets
from typing import Final
from urllib.parse import urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NEAR: Final = (".local", ".internal", ".lan", ".home.arpa")
_NONCE: Final = 12
_VERSION: Final = b"\x01"


class CannotDecrypt(Exception):
    """It was encrypted with another secret or for another purpose, or is damaged."""


class Cipher:
    """AES-256-GCM with a separate key. Data encrypted for one purpose cannot be decrypted for another."""

    def __init__(self, secret: bytes) -> None:
        self._aes = AESGCM(secret)

    def encrypt(self, text: str, purpose: str) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        return _VERSION + nonce + self._aes.encrypt(nonce, text.encode(), purpose.encode())

    def decrypt(self, encrypted: bytes, purpose: str) -> str:
        """Raises `CannotDecrypt`."""
        if encrypted[:1] != _VERSION:
            raise CannotDecrypt("encrypted in a format that this version does not support")
        nonce, content = encrypted[1 : 1 + _NONCE], encrypted[1 + _NONCE :]
        try:
            return self._aes.decrypt(nonce, content, purpose.encode()).decode()
        except (InvalidTag, ValueError):
            raise CannotDecrypt("encrypted with another secret, or for another purpose") from None


def is_plain_text(url: str) -> bool:
    """Returns whether what is sent to this URL crosses the internet in plain text."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not _is_near(parts.hostname or "")


def _is_near(host: str) -> bool:
    """Returns whether a host is on this machine or in its network, as far as its name tells."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or "." not in host or host.endswith(_NEAR)
    return address.is_loopback or address.is_private or address.is_link_local
