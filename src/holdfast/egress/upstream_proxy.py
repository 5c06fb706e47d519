"""A company's proxy between its machines and the internet. Traffic of boxes goes through it, by CONNECT.

Names are resolved there, so which address is behind one is that proxy's to judge. Its user and password are held by
reference, read when they are needed, and never told: not in an error, not in a record, not to a box.
"""

from __future__ import annotations

import asyncio
import base64
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote, urlsplit

from holdfast.egress.outbound import CannotConnect

_PORT: Final = 3128
_LONGEST: Final = 4096


@dataclass(frozen=True, slots=True)
class _Place:
    host: str
    port: int
    authorization: str | None = field(repr=False)


class UpstreamProxy:
    """The address of the proxy, directly or by reference."""

    def __init__(self, reference: str, environment: Mapping[str, str]) -> None:
        """`http://host:port`; or `env:NAME` or `file:PATH`, where that is written with user and password.

        Raises ValueError if it cannot be read or is invalid.
        """
        self._reference = reference
        self._environment = environment
        if "@" in reference and not reference.startswith(("env:", "file:")):
            raise ValueError(
                "a password does not belong on a command line: give env:NAME or file:PATH that has the URL"
            )
        self._read()

    @classmethod
    def of(cls, reference: str | None, environment: Mapping[str, str]) -> Self | None:
        """Returns None if no proxy is configured."""
        return cls(reference, environment) if reference else None

    def __repr__(self) -> str:
        return f"<UpstreamProxy {self._reference}>"

    async def connect(self) -> tuple[socket.socket, str | None]:
        """Returns a connection to the proxy, and the credential to send. Raises `CannotConnect`."""
        try:
            place = await asyncio.to_thread(self._read)
        except ValueError as error:
            raise CannotConnect(str(error)) from None
        loop = asyncio.get_running_loop()
        problem: object = "it has no address"
        try:
            found = await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        except OSError as error:
            found, problem = [], error.strerror
        for family, kind, protocol, _, address in found:
            sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                await loop.sock_connect(sock, address)
            except OSError as error:
                sock.close()
                problem = error.strerror or error
            except BaseException:
                sock.close()
                raise
            else:
                return sock, place.authorization
        raise CannotConnect(f"the proxy of this network ({self._reference}) is not reached: {problem}")

    def _read(self) -> _Place:
        text = self._reference
        if text.startswith("env:"):
            text = self._environment.get(text.removeprefix("env:"), "")
        elif text.startswith("file:"):
            try:
                with Path(text.removeprefix("file:")).open() as file:
                    text = file.read(_LONGEST)
            except (OSError, ValueError) as error:
                raise ValueError(f"{self._reference} cannot be read: {error}") from None
        try:
            parts = urlsplit(text.strip())
            port = parts.port or _PORT
        except ValueError:
            parts, port = urlsplit(""), 0
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
            # Name the reference and not its value, which may contain a password.
            raise ValueError(f"the proxy {self._reference} is not a URL like http://host:port")
        credential = None
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            credential = "Basic " + base64.b64encode(pair.encode()).decode()
        return _Place(parts.hostname, port, credential)


def tunnel_request(host: str, port: int, authorization: str | None) -> bytes:
    """Returns the request for a tunnel."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    credential = "" if authorization is None else f"Proxy-Authorization: {authorization}\r\n"
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{credential}\r\n".encode()


def tunnel_problem(head: bytes | None) -> str | None:
    """Returns why the proxy did not open a tunnel, or None if it did."""
    if head is None:
        return "the proxy of this network closed without an answer"
    words = head.split(b"\r\n", 1)[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        return "the proxy of this network does not speak HTTP"
    if words[1][:1] == b"2" and len(words[1]) == 3:
        return None
    reason = b" ".join(words[1:]).decode("ascii", "replace")[:100]
    advice = " (are its user and password right?)" if words[1] == b"407" else ""
    return f"the proxy of this network says {reason}{advice}"
