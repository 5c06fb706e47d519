"""A proxy on loopback, servers that have public names only inside of it, and boxes that are plain sockets."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.stores import open_records

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.egress import (
    Connector,
    Decision,
    DecisionLog,
    DefaultList,
    EgressProxy,
    GuestApi,
    Limits,
    Private,
    Resolver,
    UpstreamProxy,
)
from holdfast.egress.bound import ServerSecrets
from holdfast.egress.packages import PackageMirror
from holdfast.testing.outside import LoopbackConnector, StaticNames

PUBLIC = "93.184.215.14"
OTHER = "151.101.1.69"
WAIT = 10.0

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Client:
    """A program in a box, with a connection to the proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> bytes:
        async with asyncio.timeout(WAIT):
            return await self.reader.readuntil(b"\r\n\r\n")

    async def response(self) -> tuple[int, bytes]:
        """Status and body, of one with a Content-Length."""
        head = await self.head()
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        async with asyncio.timeout(WAIT):
            return int(head.split(b" ")[1]), await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        async with asyncio.timeout(WAIT):
            return await self.reader.read()

    async def is_refused(self) -> bool:
        """Whether the answer is a 403, and the connection ends with it."""
        answer = await self.rest()
        if answer.startswith(b"HTTP/1.1 403 Blocked by the network policy of this box: "):
            return True
        raise AssertionError(f"no refusal, but {answer!r}")

    async def is_reset(self) -> bool:
        """Whether the connection ends by a reset, with nothing before it."""
        try:
            async with asyncio.timeout(WAIT):
                data = await self.reader.read()
        except ConnectionResetError:
            return True
        raise AssertionError(f"no reset, but an end after {data!r}")


class World:
    """The proxy, and what is around it."""

    def __init__(self, proxy: EgressProxy, records: DecisionLog, names: Resolver, connector: Connector) -> None:
        self.proxy = proxy
        self.records = records
        self._names = names
        self._connector = connector
        self._ports: dict[str, int] = {}
        self._stack = AsyncExitStack()

    @property
    def names(self) -> StaticNames:
        assert isinstance(self._names, StaticNames)
        return self._names

    @property
    def connector(self) -> LoopbackConnector:
        assert isinstance(self._connector, LoopbackConnector)
        return self._connector

    async def close(self) -> None:
        await self._stack.aclose()

    async def serve(
        self, serve: Serve, name: str, port: int = 80, address: str = PUBLIC, tls: ssl.SSLContext | None = None
    ) -> None:
        """A server at a public name."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls)
        self._stack.callback(server.close)
        self.names.names[name] = [address]
        self.connector.servers[address, port] = server.sockets[0].getsockname()[1]

    def box(self, *allow: str, id: str = "b-1", mode: Network = Network.ALLOW, **policy: Any) -> str:
        self.proxy.admit(id, NetworkPolicy(mode, tuple(allow), **policy), {})
        if id not in self._ports:
            listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
            self._ports[id] = listener.getsockname()[1]
            self.proxy.listen(id, listener)
        return id

    async def client(self, box: str = "b-1") -> Client:
        # Connected before the proxy, on the same loop, can say anything to it.
        reader, writer = await asyncio.open_connection(
            sock=socket.create_connection(("127.0.0.1", self._ports[box]), timeout=WAIT)
        )

        async def close() -> None:
            writer.transport.abort()

        self._stack.push_async_callback(close)
        return Client(reader, writer)

    def port(self, box: str = "b-1") -> int:
        return self._ports[box]

    async def ask(self, request: bytes, box: str = "b-1") -> tuple[int, bytes]:
        client = await self.client(box)
        await client.send(request)
        return await client.response()

    async def get(self, url: str, box: str = "b-1") -> tuple[int, bytes]:
        host = url.removeprefix("http://").split("/")[0]
        return await self.ask(f"GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), box)

    async def decisions(self, box: str = "b-1", *, denied_only: bool = False) -> list[Decision]:
        """The newest first."""
        return list((await self.records.page(box, denied_only=denied_only, limit=1000)).decisions)

    async def decision(self, box: str = "b-1") -> Decision:
        """The newest."""
        return (await self.decisions(box))[0]

    async def until_ended(self, box: str = "b-1") -> None:
        """No connection of the box is left."""
        async with asyncio.timeout(WAIT):
            while self.proxy.traffic(box).open:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


QUICK = Limits(requests=1e6)


@asynccontextmanager
async def make_world(
    folder: Path,
    *,
    names: Resolver | None = None,
    connector: Connector | None = None,
    defaults: DefaultList | None = None,
    policies: Callable[[str], NetworkPolicy | None] = lambda environment: None,
    guest_api: GuestApi | None = None,
    private: Private | None = None,
    upstream: UpstreamProxy | None = None,
    secrets: ServerSecrets | None = None,
    packages: PackageMirror | None = None,
    **limits: Any,
) -> AsyncIterator[World]:
    names = names or StaticNames({})
    connector = connector or LoopbackConnector()
    async with open_records(folder / "data.db") as records:
        proxy = EgressProxy(
            names,
            connector,
            records,
            defaults=defaults,
            policies=policies,
            limits=replace(QUICK, **limits),
            guest_api=guest_api,
            private=private,
            upstream=upstream,
            secrets=secrets,
            packages=packages,
        )
        async with proxy:
            world = World(proxy, records, names, connector)
            try:
                yield world
            finally:
                await world.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with make_world(tmp_path) as world:
        yield world


def answering(body: bytes, *, extra: bytes = b"") -> Serve:
    """A server that gives the same answer to every request, and keeps the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), extra, body))
            await writer.drain()

    return serve


async def echoing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that sends back all it gets."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
