"""Reads the server name (SNI) from the first message of a TLS client. Decrypts and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST: Final = 1 << 14
"""The most bytes of a ClientHello with its records. Real ones have 2 KB, with post-quantum keys."""
_MOST_RECORDS: Final = 64
TLS_BEGINS: Final = 22
"""The first byte of a handshake."""
_CLIENT_HELLO: Final = 1
_SERVER_NAME: Final = 0


class NotTls(Exception):
    """These bytes do not start a valid TLS connection."""


@dataclass(frozen=True, slots=True)
class Hello:
    name: str | None
    """The server name as sent, or None if the client sent none."""


def read_hello(data: bytes) -> Hello | None:
    """Returns None while more bytes are needed. Raises `NotTls` as soon as that is certain."""
    message = bytearray()
    at = records = 0
    wanted = 4
    while len(message) < wanted:
        header = data[at : at + 5]
        if (header and header[0] != TLS_BEGINS) or (len(header) > 1 and header[1] != 3):
            raise NotTls("the first bytes are not a TLS handshake")
        if len(header) < 5:
            _refuse_long(data)
            return None
        length = int.from_bytes(header[3:5], "big")
        if not 0 < length <= 16384:
            raise NotTls("a TLS record has an invalid length")
        message += data[at + 5 : at + 5 + length]
        if message and message[0] != _CLIENT_HELLO:
            raise NotTls("the first TLS message is not a ClientHello")
        if len(message) >= 4:
            wanted = 4 + int.from_bytes(message[1:4], "big")
            if wanted > MOST:
                raise NotTls("the ClientHello is too long")
        if len(data) < at + 5 + length and len(message) < wanted:
            _refuse_long(data)
            return None
        at += 5 + length
        records += 1
        if records > _MOST_RECORDS:
            raise NotTls("the ClientHello is in too many pieces")
    return Hello(_server_name(_Reader(bytes(message[4:wanted]))))


def _refuse_long(data: bytes) -> None:
    if len(data) >= MOST:
        raise NotTls("the ClientHello is too long")


class _Reader:
    """Reads length-prefixed values, as TLS encodes them."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, length: int) -> bytes:
        if length > self.left:
            raise NotTls("the ClientHello is truncated")
        self._at += length
        return self._data[self._at - length : self._at]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def inner(self, size: int) -> _Reader:
        return _Reader(self.take(self.number(size)))


def _server_name(hello: _Reader) -> str | None:
    hello.take(2 + 32)  # version, random
    for size in (1, 2, 1):  # session id, ciphers, compression
        hello.take(hello.number(size))
    if not hello.left:
        return None
    extensions = hello.inner(2)
    if hello.left:
        raise NotTls("the ClientHello has data after its extensions")
    found: str | None = None
    seen = False
    while extensions.left:
        kind, value = extensions.number(2), extensions.inner(2)
        if kind != _SERVER_NAME:
            continue
        if seen:
            raise NotTls("two server names")
        seen = True
        names = value.inner(2)
        while names.left:
            name_kind, name = names.number(1), names.inner(2)
            if name_kind != 0 or found is not None:
                raise NotTls("more than one server name")
            try:
                found = name.take(name.left).decode("ascii")
            except UnicodeDecodeError:
                raise NotTls("the server name is not ASCII") from None
    return found
