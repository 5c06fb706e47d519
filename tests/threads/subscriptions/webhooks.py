"""A receiver of webhooks on this machine: a real socket that keeps what it was sent and answers as told."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import orjson

from holdfast.time_limit import time_limit

_WAIT_SECONDS: Final = 240.0
_MAX_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int = 200
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = ()
    after: asyncio.Event | None = None
    """Answer only once this is set."""


class WebhookReceiver:
    """Use it as an async context manager. Answers are given in the order of `answers`, then `default` forever."""

    def __init__(self, default: Answer | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self.default = default or Answer()
        self.answers: deque[Answer] = deque()
        self.connections = 0
        self._tls = tls
        self._received: asyncio.Queue[Received] = asyncio.Queue(_MAX_KEPT)
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self._ended.cancel()
        for _ in range(20):  # a connection that was just accepted takes some turns of the loop to show up
            await asyncio.sleep(0)
        for writer in self._open.values():
            writer.transport.abort()
        if self._open:
            await asyncio.wait(self._open)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def waiting(self) -> int:
        """How many requests nobody has taken with `next` yet."""
        return self._received.qsize()

    async def next(self) -> Received:
        async with time_limit(_WAIT_SECONDS):
            return await self._received.get()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            await self._respond(reader, writer)
            writer.close()
            await writer.wait_closed()
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the sender went away, which some tests are about
        finally:
            del self._open[task]

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self._received.put_nowait(Received(first.split(" ")[1], headers, body))
        answer = self.answers.popleft() if self.answers else self.default
        if answer.after is not None and not await self._reached(answer.after):
            return
        fields = "".join(f"{name}: {value}\r\n" for name, value in answer.headers)
        writer.write(
            f"HTTP/1.1 {answer.status} Answer\r\ncontent-length: {len(answer.body)}\r\n{fields}\r\n".encode()
            + answer.body
        )
        await writer.drain()

    async def _reached(self, event: asyncio.Event) -> bool:
        """Wait for an event, or for the end of the receiver; False where that came first."""
        waiting = asyncio.create_task(event.wait())
        futures: list[asyncio.Future[Any]] = [waiting, self._ended]
        await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        return waiting.done() or not waiting.cancel()
