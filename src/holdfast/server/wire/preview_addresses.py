"""Addresses of this machine for ports of boxes, such as `http://127.1.2.3:20456`: an origin without a name or a path.

For programs that keep only the host and the port of a link, and for resolvers that know no names below localhost. All
of 127.0.0.0/8 is this machine, so each preview has its own address: browsers keep cookies by address, not by port.
The address is computed from what it stands for, so it is the same after a restart, and nobody can guess one that stands
for a token.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from holdfast.api.errors import Refused
from holdfast.server.wire.box_hosts import PreviewAddress

log = logging.getLogger(__name__)

MOST: Final = 512
"""Most addresses of a server. Each is a listening socket."""
MOST_OF_A_BOX: Final = 64
_SWEEP_SECONDS: Final = 10.0
_REMEMBERED_MS: Final = 600_000
"""How long the address of an expired token still answers, to say that it has expired, if there is room."""
_ATTEMPTS: Final = 16
_UNPRIVILEGED: Final = 1024
_FIRST_PORT: Final = 20_000
_PORTS: Final = 12_000
"""Below the ports that the kernel gives to outgoing connections."""

Serve = Callable[[socket.socket, PreviewAddress], Awaitable[asyncio.AbstractServer]]
"""Serve the connections of a listening socket. Closing the server closes the socket."""


class TooManyPreviews(Refused):
    status = 429
    code = "too_many_previews"


class NoAddress(Refused):
    """The machine does not let us listen on an address of its own."""

    status = 503
    code = "unavailable"


@dataclass(slots=True)
class _Opened:
    address: PreviewAddress
    server: asyncio.AbstractServer


_Key = tuple[str, int, str | None]


class PreviewAddresses:
    """Opens addresses on request, and closes them some time after their token expired, or when their box is deleted."""

    def __init__(self, key: bytes, serve: Serve, expiry: Callable[[str], int], clock: Callable[[], int]) -> None:
        """`expiry` returns when a token expires, in milliseconds; `clock` the time."""
        self._key = key
        self._serve = serve
        self._expiry = expiry
        self._clock = clock
        self._opened: dict[_Key, _Opened] = {}
        self._turn = asyncio.Lock()
        self._closed = False

    def __len__(self) -> int:
        return len(self._opened)

    async def open(self, box: str, port: int, token: str | None = None) -> PreviewAddress:
        """Returns the address of a port. With a token, whoever knows the address may visit it until the token expires;
        otherwise each visitor needs a credential. Raises if there are too many."""
        key = (box, port, token)
        async with self._turn:
            if (known := self._opened.get(key)) is not None:
                return known.address
            if len(self._opened) >= MOST or self._count(box) >= MOST_OF_A_BOX:
                self._close_expired(remembered=0)
            if self._closed or len(self._opened) >= MOST:
                raise TooManyPreviews(
                    f"this server has {len(self._opened)} open previews, and has at most {MOST}: delete boxes,"
                    " or let signed links expire"
                )
            if self._count(box) >= MOST_OF_A_BOX:
                raise TooManyPreviews(
                    f"box {box} has {MOST_OF_A_BOX} open previews, and that is the most: let signed links expire first"
                )
            listener, address = self._listen(box, port, token)
            try:
                self._opened[key] = _Opened(address, await self._serve(listener, address))
            except BaseException:
                listener.close()
                raise
            return address

    def close_box(self, box: str) -> None:
        """Close the addresses of a box that is gone."""
        for key in [each for each in self._opened if each[0] == box]:
            self._close(key)

    def close(self) -> None:
        """The server stops. Its connections are closed with all others."""
        self._closed = True
        for key in list(self._opened):
            self._close(key)

    async def keep_swept(self, is_there: Callable[[str], Awaitable[bool]]) -> None:
        """Close what has expired, and the addresses of boxes that are gone, until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep(is_there)
            except Exception:
                log.exception("previews could not be checked; this is tried again in %s s", _SWEEP_SECONDS)

    async def sweep(self, is_there: Callable[[str], Awaitable[bool]]) -> None:
        self._close_expired(_REMEMBERED_MS)
        for box in {each[0] for each in self._opened}:
            if not await is_there(box):
                self.close_box(box)

    def _count(self, box: str) -> int:
        return sum(each[0] == box for each in self._opened)

    def _close_expired(self, remembered: int) -> None:
        before = self._clock() - remembered
        for key in [each for each in self._opened if each[2] is not None and self._expiry(each[2]) <= before]:
            self._close(key)

    def _close(self, key: _Key) -> None:
        self._opened.pop(key).server.close()

    def _listen(self, box: str, port: int, token: str | None) -> tuple[socket.socket, PreviewAddress]:
        problem = "all are in use"
        for name, number in candidates(self._key, box, port, token):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((name, number))
                listener.listen(128)
                listener.setblocking(False)
                return listener, PreviewAddress(box, port, f"{name}:{number}".encode(), token)
            except OSError as error:
                listener.close()
                if error.errno != errno.EADDRINUSE:
                    problem = error.strerror or str(error)
                    break
        raise NoAddress(f"this machine has no free address in 127.0.0.0/8 for port {port} of box {box}: {problem}")


def candidates(key: bytes, box: str, port: int, token: str | None) -> Iterator[tuple[str, int]]:
    """The addresses of a port, in the order in which they are tried: almost always the first one is free."""
    for attempt in range(_ATTEMPTS):
        text = f"preview address {attempt} {box} {port} {token or ''}".encode()
        digest = hmac.digest(key, text, "sha256")
        # Neither 0, 1 nor 255 in the last place: some tools take these for something else.
        name = f"127.{digest[0]}.{digest[1]}.{2 + digest[2] % 253}"
        if token is None and attempt == 0 and port >= _UNPRIVILEGED:
            yield name, port  # nothing is lost if somebody guesses it, and people recognize it
        yield name, _FIRST_PORT + int.from_bytes(digest[3:7], "big") % _PORTS
