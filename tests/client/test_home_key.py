"""The key of a home's server lives as long as that server. Who found it in the home goes on with the next one's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.server.box_providers import dummies
from tests.serving import serving

from holdfast import Client, SyncClient
from holdfast.client import Unauthorized
from holdfast.client.local_server import HomeAddress
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio

AT_ONCE = 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """One of its own: it is restarted."""
    with serving(tmp_path / "home", providers=dummies, long_poll_timeout=0.5) as server:
        yield server


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(server.url, api_key=server.api_key, find_again=HomeAddress(server.home)) as client:
        yield client


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_tail_goes_on_with_the_key_of_the_next_server(client: Client, server: ServerProcess, how: str) -> None:
    thread = await client.threads.create()
    await thread.chat("before")
    async with thread.tail() as tail:
        while (await anext(tail)).payload.get("text") != "before":
            pass
        waiting = asyncio.ensure_future(anext(tail))  # in the middle of a live read
        getattr(server, how)()
        server.start()
        await thread.chat("after")
        entry = await asyncio.wait_for(waiting, 60)
        assert entry.payload["text"] == "after"


async def test_a_tail_that_was_given_its_key_says_that_it_is_refused(server: ServerProcess) -> None:
    async with Client(server.url, api_key=server.api_key) as given:
        thread = await given.threads.create()
        async with thread.tail(since="now") as tail:
            waiting = asyncio.ensure_future(anext(tail))
            server.restart()
            with pytest.raises(Unauthorized):
                await asyncio.wait_for(waiting, 60)


async def test_all_who_ask_at_once_go_on(client: Client, server: ServerProcess) -> None:
    thread = await client.threads.create()
    server.restart()
    asked = await asyncio.gather(*(client.threads.get(thread.id) for _ in range(AT_ONCE)))
    assert {each.id for each in asked} == {thread.id}


async def test_streams_both_ways_go_on(client: Client, server: ServerProcess) -> None:
    made = await client.boxes.create()
    async with await client.boxes.open(made.box.id) as box:
        process = await box.spawn(["sh", "-c", "echo one; read line; echo $line"], stdin=True)
        following = process.output()
        assert (await anext(following)).data == b"one\n"

        async def pieces() -> AsyncIterator[bytes]:
            yield b"some "
            yield b"bytes"

        server.restart()
        await box.files.write("a", pieces())
        server.restart()
        assert b"".join([piece async for piece in box.files.stream("a")]) == b"some bytes"
        server.restart()
        await process.write(b"two\n")
        server.restart()
        assert (await asyncio.wait_for(anext(following), 60)).data == b"two\n"
        server.restart()
        assert (await box.exec(["cat", "a"])).stdout == b"some bytes"
        server.restart()
        async with await box.channel(["cat"]) as channel:
            await channel.write(b"over a socket")
            assert await channel.read() == b"over a socket"
    await client.boxes.delete(made.box.id)


def test_a_sync_client_goes_on(server: ServerProcess) -> None:
    with SyncClient(server.url, api_key=server.api_key, find_again=HomeAddress(server.home)) as client:
        thread = client.threads.create()
        with thread.tail() as tail:
            assert next(tail).type == "signal.thread.created"
            server.restart()
            thread.chat("after")
            assert next(tail).payload["text"] == "after"
