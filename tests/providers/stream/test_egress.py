"""What a box connects to on its way out arrives at the egress, connection by connection."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from tests.providers.stream.over_pipes import PipesProvider

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict
from holdfast.boxes.network_policy import Traffic
from holdfast.providers.stream import serve_egress
from holdfast.testing.provider_suite.base import exactly, rest

pytestmark = pytest.mark.anyio


class EchoEgress:
    """Sends back what it gets, and `end` at the end of it."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.open = 0
        self.refuses = False
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, box: str, connection: socket.socket) -> None:
        self.taken.append(box)
        if self.refuses:
            connection.close()
            return
        task = asyncio.create_task(self._echo(connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _echo(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self.open += 1
        try:
            with connection:
                while data := await loop.sock_recv(connection, 1 << 16):
                    await loop.sock_sendall(connection, data)
                await loop.sock_sendall(connection, b"end")
        except OSError:
            pass
        finally:
            self.open -= 1

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def admit(self, box: str, policy: NetworkPolicy, labels: Mapping[str, str]) -> None: ...
    def listen(self, box: str, listener: socket.socket) -> None: ...
    def dismiss(self, box: str) -> None: ...

    def traffic(self, box: str) -> Traffic:
        return Traffic()

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        return {}


@pytest.fixture
async def egress() -> AsyncIterator[EchoEgress]:
    egress = EchoEgress()
    yield egress
    await egress.close()


@pytest.fixture
async def provider(tmp_path: Path, egress: EchoEgress) -> AsyncIterator[PipesProvider]:
    async with PipesProvider(tmp_path / "pipes") as provider:
        yield provider
        for info in await provider.find():
            await provider.remove(info.id)


@pytest.fixture
async def box(provider: PipesProvider) -> Box:
    return await provider.create(BoxSpec(provider="pipes", network=NetworkPolicy(Network.OPEN)), id="one")


async def test_connections_reach_the_egress_and_bytes_go_both_ways(
    provider: PipesProvider, box: Box, egress: EchoEgress
) -> None:
    port = await serve_egress(provider.guest("one"), egress, port=0)
    data = os.urandom(8 << 20)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        writer.write(data)
        await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    assert await reader.read(-1) == data + b"end"
    await sending
    writer.close()
    await writer.wait_closed()
    assert egress.taken == ["one"]


async def test_many_connections_are_open_at_once_and_all_end(
    provider: PipesProvider, box: Box, egress: EchoEgress
) -> None:
    port = await serve_egress(provider.guest("one"), egress, port=0)

    async def talk(number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"%d" % number)
        writer.write_eof()
        try:
            return await reader.read(-1)
        finally:
            writer.close()
            await writer.wait_closed()

    async with asyncio.timeout(240):
        # More than are carried at once: the others wait their turn.
        answers = await asyncio.gather(*(talk(number) for number in range(400)))
    assert answers == [b"%dend" % number for number in range(400)]
    assert egress.taken == ["one"] * 400


async def test_what_the_egress_closes_is_closed_in_the_box(
    provider: PipesProvider, box: Box, egress: EchoEgress
) -> None:
    egress.refuses = True
    port = await serve_egress(provider.guest("one"), egress, port=0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(240):
        assert await reader.read() == b""
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def test_the_way_out_comes_back_with_the_next_stream(
    provider: PipesProvider, box: Box, egress: EchoEgress
) -> None:
    port = await serve_egress(provider.guest("one"), egress, port=0)
    provider.transports["one"].process.kill()
    # Nobody asks for anything: it is dialled again all the same, and who connected meanwhile waited.
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"late")
    writer.write_eof()
    async with asyncio.timeout(240):
        assert await reader.read(-1) == b"lateend"
    writer.close()
    await writer.wait_closed()


async def test_a_port_that_is_taken_is_a_conflict(provider: PipesProvider, box: Box, egress: EchoEgress) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(BoxConflict):
        await serve_egress(provider.guest("one"), egress, port=other.getsockname()[1])
    assert (await box.exec(["true"])).ok


async def test_connections_to_ports_and_the_way_out_are_counted(
    provider: PipesProvider, box: Box, egress: EchoEgress
) -> None:
    port = await serve_egress(provider.guest("one"), egress, port=0)
    assert (await box.metrics()).connections == 0
    async with await box.connect(port) as connection:
        await connection.write(b"x")
        assert await exactly(connection, 1) == b"x"
        metrics = await box.metrics()
        assert metrics.connections == 2  # there, and out from there
        assert metrics.idle_seconds == 0
        await connection.close_write()
        assert await rest(connection) == b"end"
