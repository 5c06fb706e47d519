"""A few lines of HTTP/1.1, quick enough to have an answer in hand while the server still does what comes after it.

Fault trials need that: a message that is acknowledged too early is lost only if the kill comes within the same
millisecond. For everything else there is httpx.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

import httptools

from holdfast.time_limit import time_limit

_PATIENCE: Final = 240.0
"""Seconds that an answer may take."""
_SILENCE: Final = 90.0
"""Seconds that one which goes on may be silent: the server ends it earlier."""


class Lost(ConnectionError):
    """The connection ended before the answer did."""


@dataclass(slots=True)
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def __str__(self) -> str:
        return f"{self.status} {self.body[:300].decode(errors='replace')}"


class HttpConnection:
    """One connection to a server, made again when it was lost. One request at a time."""

    def __init__(self, address: tuple[str, int], credential: str | None = None) -> None:
        self._address = address
        self._fixed = {"host": f"{address[0]}:{address[1]}"}
        if credential is not None:
            self._fixed["authorization"] = f"Bearer {credential}"
        self._protocol: _Protocol | None = None

    async def ask(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        """The whole answer; `Lost` where there is none."""
        protocol = await self._send(method, target, headers or {}, body)
        try:
            async with time_limit(_PATIENCE):
                return await protocol.answered
        except TimeoutError:
            self.close()
            raise Lost(f"{method} {target} was not answered within {_PATIENCE:g} s") from None

    async def follow(self, target: str) -> AsyncGenerator[bytes]:
        """The body of an answer, in pieces, as long as it goes on. Ends when the answer does."""
        protocol = await self._send("GET", target, {}, b"")
        try:
            await protocol.wait()
            if protocol.answer.status != 200:
                raise Refused(await protocol.answered)
            while True:
                done = protocol.answered.done()
                for piece in protocol.take():
                    yield piece
                if done:
                    await protocol.answered  # raises where the connection ended first
                    return
                await protocol.wait()
        finally:
            self.close()

    def close(self) -> None:
        if self._protocol is not None:
            self._protocol.close()
            self._protocol = None

    async def _send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> _Protocol:
        if self._protocol is None or self._protocol.over:
            loop = asyncio.get_running_loop()
            try:
                async with time_limit(_PATIENCE):
                    _, self._protocol = await loop.create_connection(_Protocol, *self._address)
            except (OSError, TimeoutError) as error:
                raise Lost(str(error)) from error
        lines = [f"{method} {target} HTTP/1.1", *(f"{k}: {v}" for k, v in {**self._fixed, **headers}.items())]
        if method not in ("GET", "HEAD"):
            lines.append(f"content-length: {len(body)}")
        self._protocol.begin(("\r\n".join(lines) + "\r\n\r\n").encode() + body)
        return self._protocol


class Refused(Exception):
    """An answer where an endless one was expected."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(str(answer))
        self.answer = answer


class _Protocol(asyncio.Protocol):
    def __init__(self) -> None:
        self.over = False
        """This connection carries no further request."""
        self._came = asyncio.Event()
        self.answer = Answer()
        self.answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pieces: list[bytes] = []
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None

    def begin(self, request: bytes) -> None:
        self.answer, self._pieces = Answer(), []
        self._came.clear()
        self.answered = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self._transport.write(request)

    async def wait(self) -> None:
        """Until something has come: the head of the answer, a piece of its body, its end."""
        try:
            async with time_limit(_SILENCE):
                await self._came.wait()
        except TimeoutError:
            raise Lost(f"nothing came for {_SILENCE:g} s") from None

    def take(self) -> list[bytes]:
        """What has come of the body since the last time."""
        pieces, self._pieces = self._pieces, []
        self._came.clear()
        return pieces

    def close(self) -> None:
        self.over = True
        if self._transport is not None:
            self._transport.abort()

    # Of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, and no subclass

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.over = True
        if not self.answered.done():
            self.answered.set_exception(Lost(str(error or "the server ended the connection")))
            self.answered.exception()  # nobody need be waiting
        self._came.set()

    # Of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.answer.status = self._parser.get_status_code()
        self._came.set()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._came.set()

    def on_message_complete(self) -> None:
        self.answer.body = b"".join(self._pieces)
        if not self._parser.should_keep_alive():
            self.over = True
        if not self.answered.done():
            self.answered.set_result(self.answer)
        self._came.set()
