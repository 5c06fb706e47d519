"""A client for HTTP/1.1 that keeps connections open. The model gateway uses it, where httpx took most of the time.

It sends a request as it is, and follows no redirect. Requests, answers and errors are those of httpx. Proxies are not
supported.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import zip_longest
from typing import Any, Final, Protocol

import httpx

from holdfast.egress.addresses import refusal
from holdfast.egress.http_body import read_body
from holdfast.egress.http_connection import HttpConnection, Origin, Timeouts, Unanswered
from holdfast.egress.http_head import BadHead, Body
from holdfast.egress.sockets import Ended
from holdfast.time_limit import time_limit

_MOST: Final = 1000
"""Requests at once."""
_MOST_IDLE: Final = 100
"""Connections kept open."""
_MOST_IDLE_OF_ORIGIN: Final = 64
_IDLE_SECONDS: Final = 30.0
_HEAD_SECONDS: Final = 30.0
_STAGGER_SECONDS: Final = 0.25
"""After which the next address of a name is tried beside the one before."""
_SAFE: Final = ("GET", "HEAD", "OPTIONS")

Address = tuple[int, Any]
"""Family, and an address as sockets of that family have it."""
MakeTls = Callable[[], Awaitable[ssl.SSLContext]]


class HttpClient:
    """A pool of connections, for one event loop. The creator closes it."""

    def __init__(
        self,
        make_tls: MakeTls,
        *,
        most: int = _MOST,
        idle_seconds: float = _IDLE_SECONDS,
        head_seconds: float = _HEAD_SECONDS,
        public_only: bool = False,
    ) -> None:
        """`make_tls` returns what verifies servers. `most` is how many requests are sent at once; others wait. With
        `public_only`, no address of this machine or of a private network is reached, whatever name it has.
        """
        self._public_only = public_only
        self._make_tls = make_tls
        self._head_seconds = head_seconds
        self._idle_seconds = idle_seconds
        self._free = asyncio.Semaphore(most)
        self._idle: dict[HttpConnection, Origin] = {}
        """The oldest first."""
        self._busy: set[HttpConnection] = set()

    async def send(self, request: httpx.Request) -> httpx.Response:
        """Returns the answer without its body. Whoever gets it closes it."""
        timeouts = Timeouts.of(request)
        try:
            async with time_limit(timeouts.pool):
                await self._free.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("too many requests are in progress") from None
        connection: HttpConnection | None = None
        try:
            origin = _origin(request.url)
            if origin not in self._idle.values():
                connection = await self._connect(origin, timeouts)
            assert isinstance(request.stream, httpx.AsyncByteStream)
            pieces = aiter(request.stream)
            # An idle connection may be closed while a body is waited for, so it is taken after that.
            first = await anext(pieces, b"")
            is_reused = connection is None and (connection := self._take(origin)) is not None
            if connection is None:
                connection = await self._connect(origin, timeouts)
            try:
                head = await connection.ask(request, pieces, first, timeouts)
            except (Unanswered, httpx.ReadError):
                if not is_reused or connection.buffer or request.method not in _SAFE or first:
                    raise
                self._busy.discard(connection)
                connection.abort()
                connection = await self._connect(origin, timeouts)
                head = await connection.ask(request, pieces, first, timeouts)
            body = _AnswerBody(connection, head.body, self._release)
            return httpx.Response(head.status, headers=head.headers, stream=body)
        except BaseException:
            self._free.release()
            if connection is not None:
                self._busy.discard(connection)
                connection.abort()
            raise

    async def close(self) -> None:
        """Close all connections, also those in use."""
        connections = [*self._idle, *self._busy]
        self._idle.clear()
        for connection in connections:
            connection.abort()
        await asyncio.sleep(0)  # they are closed in the next round of the event loop

    def _take(self, origin: Origin) -> HttpConnection | None:
        """Returns the idle connection that was used last, if one is fit for use."""
        for connection in [each for each, of in reversed(self._idle.items()) if of == origin]:
            del self._idle[connection]
            if connection.wake_up():
                self._busy.add(connection)
                return connection
            connection.abort()
        return None

    def _release(self, connection: HttpConnection, *, is_whole: bool) -> None:
        self._free.release()
        self._busy.discard(connection)
        if not is_whole or not connection.can_continue():
            connection.abort()
            return
        origin = connection.origin
        same = [each for each, of in self._idle.items() if of == origin]
        if len(same) >= _MOST_IDLE_OF_ORIGIN:
            self._drop(same[0])
        elif len(self._idle) >= _MOST_IDLE:
            self._drop(next(iter(self._idle)))
        self._idle[connection] = origin
        connection.rest(self._idle_seconds)

    def _drop(self, connection: HttpConnection) -> None:
        self._idle.pop(connection, None)
        connection.abort()

    async def _connect(self, origin: Origin, timeouts: Timeouts) -> HttpConnection:
        scheme, host, port = origin
        if scheme not in ("http", "https"):
            raise httpx.UnsupportedProtocol(f"{scheme} is not supported")
        context = await self._make_tls() if scheme == "https" else None
        try:
            async with time_limit(timeouts.connect):
                sock = await _open(host, port, public_only=self._public_only)
                connection = HttpConnection(origin, self._head_seconds, self._drop)
                try:
                    name = None if context is None else host
                    await asyncio.get_running_loop().create_connection(
                        lambda: connection, sock=sock, ssl=context, server_hostname=name
                    )
                except BaseException:
                    connection.abort()
                    raise
        except TimeoutError:
            raise httpx.ConnectTimeout("no connection in time") from None
        except (OSError, UnicodeError) as error:
            raise httpx.ConnectError(str(error) or type(error).__name__) from None
        self._busy.add(connection)
        return connection


class _Release(Protocol):
    def __call__(self, connection: HttpConnection, *, is_whole: bool) -> None: ...


class _AnswerBody(httpx.AsyncByteStream):
    """Gives its connection back at its end, or closes it before."""

    def __init__(self, connection: HttpConnection, body: Body, release: _Release) -> None:
        self._connection = connection
        self._body = body
        self._release = release
        self._is_whole = body.empty
        self._is_released = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in read_body(self._connection, self._body):
                yield piece
        except (BadHead, Ended) as error:
            raise httpx.RemoteProtocolError(str(error)) from None
        self._is_whole = True
        await self.aclose()

    async def aclose(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._release(self._connection, is_whole=self._is_whole)


def _origin(url: httpx.URL) -> Origin:
    return url.scheme, url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)


async def _open(host: str, port: int, *, public_only: bool) -> socket.socket:
    """Returns a socket that is connected to the first address of a host that answers. Raises OSError."""
    try:
        version = ipaddress.ip_address(host).version
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        if public_only:
            for *_, address in found:
                _check_public(host, str(address[0]))
        return await _open_first([(family, address) for family, _, _, _, address in found])
    if public_only:
        _check_public(host, host)
    return await _open_address(socket.AF_INET if version == 4 else socket.AF_INET6, (host, port))


def _check_public(host: str, address: str) -> None:
    if (reason := refusal(address)) is not None:
        raise OSError(f"{host} is not reached from here: {address} is {reason}")


async def _open_first(addresses: Sequence[Address]) -> socket.socket:
    """Tries one address after the other, and does not wait for a slow one before it tries the next."""
    tasks: list[asyncio.Task[socket.socket]] = []
    chosen: socket.socket | None = None
    try:
        for number, address in enumerate(_alternate(addresses), 1):
            tasks.append(asyncio.create_task(_open_address(*address)))
            patience = _STAGGER_SECONDS if number < len(addresses) else None
            while pending := [task for task in tasks if not task.done()]:
                done, _ = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                opened = [task for task in done if task.exception() is None]
                if opened:
                    chosen = opened[0].result()
                    return chosen
                if number < len(addresses):
                    break
        raise OSError("; ".join(dict.fromkeys(str(task.exception()) for task in tasks)) or "it has no address")
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, socket.socket) and result is not chosen:
                result.close()


def _alternate(addresses: Sequence[Address]) -> list[Address]:
    """Returns the addresses with IPv6 and IPv4 in turn, each in its order: often only one of them works."""
    of_first = [each for each in addresses if each[0] == addresses[0][0]]
    others = [each for each in addresses if each[0] != addresses[0][0]]
    return [each for pair in zip_longest(of_first, others) for each in pair if each is not None]


async def _open_address(family: int, address: Any) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock
