"""Channels: bytes in both directions, to a process or to a port."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import pytest

from holdfast.api.box.box import Box
from holdfast.api.box.process import Connection, Process
from holdfast.api.errors.boxes import BoxError, ConnectRefused, InvalidSpec
from holdfast.boxes.capabilities import Capability
from holdfast.testing.provider_suite.base import (
    MEGABYTE,
    BoxFactory,
    Suite,
    cancelled,
    claims,
    ends,
    exactly,
    number_in,
    prints,
    rest,
)

_SERVER = """
import socket, sys, threading
listening = socket.create_server(("127.0.0.1", 0), backlog=64)
print(listening.getsockname()[1], flush=True)
def echo(connection):
    with connection:
        while data := connection.recv(65536):
            connection.sendall(data)
        connection.sendall(b"end")
while True:
    threading.Thread(target=echo, args=(listening.accept()[0],), daemon=True).start()
"""


async def _both_ways(connection: Connection, data: bytes) -> bytes:
    async def send() -> None:
        for start in range(0, len(data), 100_000):
            await connection.write(data[start : start + 100_000])
        await connection.close_write()

    sending = asyncio.create_task(send())
    try:
        return await rest(connection)
    finally:
        await sending


class Channels(Suite):
    async def test_a_channel_carries_bytes_both_ways_until_its_end(self, box: Box) -> None:
        async with await box.channel(["cat"]) as channel:
            await channel.write(b"hel")
            await channel.write(b"lo\0\xff")
            assert await exactly(channel, 7) == b"hello\0\xff"
            await channel.write(b"more")
            assert await exactly(channel, 4) == b"more"
            await channel.close_write()
            assert await channel.read() == b""
            assert await channel.wait() == 0

    async def test_a_channel_tells_the_exit_code_and_what_went_to_stderr(self, box: Box) -> None:
        async with await box.channel(["sh", "-c", "echo out; echo problem >&2; exit 9"]) as channel:
            assert await rest(channel) == b"out\n"
            assert await channel.wait() == 9
            assert channel.stderr == b"problem\n"
        async with await box.channel(["sh", "-c", "kill -9 $$"]) as channel:
            assert await rest(channel) == b""
            assert await channel.wait() == 128 + 9

    async def test_a_channel_keeps_the_end_of_a_long_stderr(self, box: Box) -> None:
        script = "head -c 1000000 /dev/zero >&2; printf end >&2"
        async with await box.channel(["sh", "-c", script]) as channel:
            assert await channel.wait() == 0
            assert channel.stderr.endswith(b"end")
            assert 1000 <= len(channel.stderr) <= 64 * 1024

    async def test_closing_a_channel_ends_its_process(self, box: Box) -> None:
        async with await box.channel(["sh", "-c", "sleep 1000 & echo $! > child; echo $$ > self; wait"]):
            self_, child = await number_in(box, "self"), await number_in(box, "child")
        await ends(box, self_)
        await ends(box, child)

    async def test_closing_a_channel_twice_is_fine(self, box: Box) -> None:
        channel = await box.channel(["cat"])
        await channel.close()
        await channel.close()

    async def test_a_lot_goes_through_a_channel_both_ways_at_once(self, box: Box) -> None:
        data = os.urandom(8 * MEGABYTE)
        async with await box.channel(["cat"]) as channel:
            assert await _both_ways(channel, data) == data
            assert await channel.wait() == 0

    async def test_a_cancelled_read_loses_nothing(self, box: Box) -> None:
        async with await box.channel(["cat"]) as channel:
            for number in range(10):
                reading = asyncio.create_task(channel.read())
                await asyncio.sleep(0)
                await cancelled(reading)
                await channel.write(b"%d" % number)
                assert await exactly(channel, 1) == b"%d" % number

    async def test_a_channel_has_the_env_and_place_that_it_was_given(self, box: Box) -> None:
        await box.files.write("below/mark", b"below")
        argv = ["sh", "-c", 'printf "%s|" "$WORD"; cat mark']
        async with await box.channel(argv, env={"WORD": "given"}, cwd="below") as channel:
            assert await rest(channel) == b"given|below"

    async def test_many_channels_are_open_at_once(self, box: Box) -> None:
        channels = await asyncio.gather(*(box.channel(["cat"]) for _ in range(20)))
        try:
            for number, channel in enumerate(channels):
                await channel.write(b"%d" % number)
            for number, channel in enumerate(channels):
                assert await exactly(channel, len(str(number))) == b"%d" % number
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))

    # --- ports ---

    async def _listener(self, box: Box) -> tuple[Process, int]:
        if not (await box.exec(["sh", "-c", 'command -v "$1"', "sh", self.python])).ok:
            pytest.skip(f"there is no {self.python} in the box to listen with")
        process = await box.spawn([self.python, "-c", _SERVER])
        return process, int(await prints(process, b"\n"))

    @claims(Capability.CONNECT)
    async def test_a_port_in_the_box_can_be_talked_to(self, box: Box) -> None:
        _, port = await self._listener(box)
        async with await box.connect(port) as connection:
            await connection.write(b"hello")
            assert await exactly(connection, 5) == b"hello"
            await connection.close_write()
            assert await rest(connection) == b"end"

    @claims(Capability.CONNECT)
    async def test_a_lot_goes_to_a_port_and_back_at_once(self, box: Box) -> None:
        _, port = await self._listener(box)
        data = os.urandom(8 * MEGABYTE)
        async with await box.connect(port) as connection:
            assert await _both_ways(connection, data) == data + b"end"

    @claims(Capability.CONNECT)
    async def test_many_connections_to_a_port_are_open_at_once(self, box: Box) -> None:
        _, port = await self._listener(box)
        connections = await asyncio.gather(*(box.connect(port) for _ in range(20)))
        try:
            for number, connection in enumerate(connections):
                await connection.write(b"%d" % number)
            for number, connection in enumerate(connections):
                assert await exactly(connection, len(str(number))) == b"%d" % number
        finally:
            await asyncio.gather(*(connection.close() for connection in connections))

    @claims(Capability.CONNECT)
    async def test_a_port_that_nothing_listens_on_refuses(self, box: Box) -> None:
        process, port = await self._listener(box)
        await process.kill()
        await process.wait(20)
        with pytest.raises(ConnectRefused):
            await box.connect(port)
        for wrong in (0, -1, 65536):
            with pytest.raises((InvalidSpec, ConnectRefused)):
                await box.connect(wrong)

    @claims(Capability.CONNECT)
    async def test_a_connection_ends_with_the_other_side(self, box: Box) -> None:
        process, port = await self._listener(box)
        async with await box.connect(port) as connection:
            await connection.write(b"x")
            assert await exactly(connection, 1) == b"x"
            await process.kill()
            with suppress(BoxError, ConnectionError):  # a reset is an end as well
                assert await rest(connection) == b""

    @claims(Capability.CONNECT, Capability.ISOLATION)
    async def test_each_box_has_ports_of_its_own(self, box: Box, factory: BoxFactory) -> None:
        _, port = await self._listener(box)
        other = await factory.box()
        with pytest.raises(ConnectRefused):
            await other.connect(port)

    @claims(Capability.PREVIEW)
    async def test_a_preview_says_where_to_go(self, box: Box) -> None:
        preview = await box.preview(8000)
        assert preview.url.startswith(("http://", "https://"))
