"""Two hosts of one box, one after the other: the later one has its egress at once, whatever became of the earlier."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from tests.providers.stream.over_pipes import GUEST, PipesProvider, ProcessTransport
from tests.providers.stream.test_egress import EchoEgress

from holdfast.api.box.box import Box
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict
from holdfast.guest.init import codec, frames
from holdfast.providers.stream import StreamGuestClient, bridge_command, serve_egress
from holdfast.providers.stream.process import StreamProcesses
from holdfast.testing.provider_suite.base import eventually

pytestmark = pytest.mark.anyio
PATIENCE = frames.SILENCE_SECONDS / 2
"""A bridge whose host is dead would notice that later by itself."""


class CloudTransport(ProcessTransport):
    """A cloud does not tell the bridge in the box that its host has closed the transport, or died."""

    async def close(self) -> None: ...

    async def end(self) -> None:
        await super().close()


class Host:
    """One that talks to a box."""

    def __init__(self, folder: Path, python: str) -> None:
        self._command = bridge_command([python], GUEST, run=str(folder))
        self.transports: list[CloudTransport] = []
        self.client = StreamGuestClient("one", self._dial)
        self.processes = StreamProcesses(self.client)

    async def _dial(self) -> CloudTransport:
        self.transports.append(CloudTransport(self._command))
        return self.transports[-1]

    async def kill(self) -> None:
        """Nothing of it runs any more."""
        await self.client.stop_serving()
        assert self.client._wire is not None
        for task in self.client._wire._tasks:
            task.cancel()
        await asyncio.gather(*self.client._wire._tasks, return_exceptions=True)


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[PipesProvider]:
    async with PipesProvider(tmp_path / "pipes") as provider:
        yield provider
        for info in await provider.find():
            await provider.remove(info.id)


@pytest.fixture
async def box(provider: PipesProvider) -> Box:
    return await provider.create(BoxSpec(provider="pipes", network=NetworkPolicy(Network.OPEN)), id="one")


@pytest.fixture
async def new_host(provider: PipesProvider, box: Box) -> AsyncIterator[Callable[[], Host]]:
    hosts: list[Host] = []

    def new() -> Host:
        hosts.append(Host(provider.data_dir.box("one"), provider.python))
        return hosts[-1]

    yield new
    for host in hosts:
        await host.client.close()
        for transport in host.transports:
            await transport.end()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A program in the box, with a connection to its proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def answer(port: int) -> bytes:
    async with asyncio.timeout(PATIENCE), connected(port) as (reader, writer):
        writer.write(b"ping ")
        writer.write_eof()
        return await reader.read(-1)


async def until(holds: Callable[[], bool], otherwise: str) -> None:
    async def check() -> bool:
        return holds()

    await eventually(check, otherwise)


async def test_who_waits_for_a_host_that_was_killed_is_let_go_by_the_next_one(new_host: Callable[[], Host]) -> None:
    killed, egress = new_host(), EchoEgress()
    port = await serve_egress(killed.client, egress, port=0)
    async with connected(port) as (reader, writer):
        writer.write(b"question")
        assert await reader.readexactly(8) == b"question"  # it is carried by the bridge of the first
        await killed.kill()

        later, next_egress = new_host(), EchoEgress()
        assert await serve_egress(later.client, next_egress, port=0) == port
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
    assert await answer(port) == b"ping end"
    assert (egress.taken, next_egress.taken) == (["one"], ["one"])
    async with asyncio.timeout(PATIENCE):
        await asyncio.to_thread(killed.transports[0].process.wait)


async def test_a_delayed_request_of_an_earlier_host_takes_nothing_back(new_host: Callable[[], Host]) -> None:
    earlier, later, egress = new_host(), new_host(), EchoEgress()
    await earlier.client.open()
    port = await serve_egress(later.client, egress, port=0)
    with pytest.raises(BoxConflict, match="another server serves box one"):
        await serve_egress(earlier.client, EchoEgress(), port=0)
    assert later.client.serving
    assert await answer(port) == b"ping end"
    assert egress.taken == ["one"]


async def test_a_host_that_lives_is_told_and_does_not_fight(new_host: Callable[[], Host]) -> None:
    first, second = new_host(), new_host()
    egresses = [EchoEgress(), EchoEgress(), EchoEgress()]
    port = await serve_egress(first.client, egresses[0], port=0)
    await serve_egress(second.client, egresses[1], port=0)
    await until(lambda: not first.client.serving, "the first host goes on")
    assert await answer(port) == b"ping end"
    assert second.client.serving

    await serve_egress(first.client, egresses[2], port=0)  # because somebody wants it to
    await until(lambda: not second.client.serving, "the second host goes on")
    assert await answer(port) == b"ping end"
    assert [each.taken for each in egresses] == [[], ["one"], ["one"]]


async def test_commands_of_other_hosts_go_on(new_host: Callable[[], Host], box: Box) -> None:
    beside, first, second = new_host(), new_host(), new_host()
    channel = await beside.processes.channel(["/bin/cat"], {}, "/")
    await serve_egress(first.client, EchoEgress(), port=0)
    await serve_egress(second.client, EchoEgress(), port=0)
    await until(lambda: not first.client.serving, "the first host goes on")
    await channel.write(b"still here")
    assert await channel.read() == b"still here"
    await channel.close()
    assert len(beside.transports) == 1


async def test_a_host_whose_stream_was_cut_has_its_egress_back_at_once(new_host: Callable[[], Host]) -> None:
    host, egress = new_host(), EchoEgress()
    port = await serve_egress(host.client, egress, port=0)
    async with connected(port) as (reader, writer):
        writer.write(b"question")
        assert await reader.readexactly(8) == b"question"
        assert host.client._wire is not None
        host.client._wire._lose("cut")  # here; the bridge has not heard of it
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
    assert await answer(port) == b"ping end"


async def test_a_program_in_the_box_that_takes_the_egress_cannot_keep_it(
    provider: PipesProvider, new_host: Callable[[], Host]
) -> None:
    host, egress = new_host(), EchoEgress()
    port = await serve_egress(host.client, egress, port=0)
    with thief(provider, {"op": "bridge"}), thief(provider, {"op": "listen", "port": port, "bridge": 1 << 60}):
        await until(lambda: not host.client.serving, "the server was not told")
        assert await serve_egress(host.client, egress, port=0) == port
        assert await answer(port) == b"ping end"
    for wrong in ("1", -1, None, [1]):
        with thief(provider, {"op": "listen", "port": port, "bridge": wrong}):
            assert await answer(port) == b"ping end"
    assert host.client.serving


@contextmanager
def thief(provider: PipesProvider, request: dict[str, object]) -> Iterator[bytes]:
    """A program in the box that talks to the guest as a bridge does. Gives the guest's answer."""
    folder = os.open(provider.data_dir.box("one"), os.O_PATH)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(f"/proc/self/fd/{folder}/guest.sock")
        os.close(folder)
        connection.sendall(codec.frame(request))
        data, rights, _, _ = connection.recvmsg(1 << 16, socket.CMSG_SPACE(32))
        for _, _, numbers in rights:
            for start in range(0, len(numbers), 4):
                os.close(int.from_bytes(numbers[start : start + 4], sys.byteorder))
        yield data
