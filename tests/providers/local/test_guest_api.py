"""The guest API of a local box: what is in it reaches Holdfast, whatever its policy is, and nobody can pose as that."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.providers.local.networking import works
from tests.stores import open_records

from holdfast.api.box.box import Box
from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.boxes import BoxConflict, Unsupported
from holdfast.boxes.network_policy import PROXY_PORT
from holdfast.egress import EgressProxy
from holdfast.providers.local import LocalProvider
from holdfast.testing.outside import Nowhere

pytestmark = pytest.mark.anyio


async def says_who_came(box: str, connection: socket.socket, ahead: bytes) -> None:
    with connection:
        answer = f"{box} asked for {ahead.split()[1].decode()}"
        head = f"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {len(answer)}\r\n\r\n"
        await asyncio.get_running_loop().sock_sendall(connection, (head + answer).encode())


@asynccontextmanager
async def serving(home: Path) -> AsyncIterator[LocalProvider]:
    home.mkdir(exist_ok=True)
    async with (
        open_records(home / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records, guest_api=says_who_came) as proxy,
        LocalProvider(home, egress=proxy) as provider,
    ):
        yield provider


async def ask(box: Box, url: str) -> str:
    return await works(box, "curl", "--silent", "--show-error", "--max-time", "20", f"{url}/hello")


async def test_what_is_in_a_box_without_a_network_reaches_its_door_also_after_the_server_came_back(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "home") as provider:
        one, other = await provider.create(BoxSpec(), id="b-one"), await provider.create(BoxSpec(), id="b-other")
        url = await one.open_guest_api()
        assert await one.open_guest_api() == url == await other.open_guest_api()
        assert await ask(one, url) == "b-one asked for /hello"
        assert await ask(other, url) == "b-other asked for /hello"
        proxied = await one.exec(["curl", "--silent", "--proxy", url, "http://example.com/"], timeout=30)
        assert proxied.exit_code != 0
    async with serving(tmp_path / "home") as provider:
        one = await provider.attach("b-one")
        assert await ask(one, url) == "b-one asked for /hello"
        await one.stop()
        await one.start()
        assert await ask(one, await one.open_guest_api()) == "b-one asked for /hello"
        for id in ("b-one", "b-other"):
            await provider.remove(id)


async def test_a_snapshot_that_restarts_a_box_leaves_its_door_open(tmp_path: Path) -> None:
    """A run may be about to start there, and has opened it."""
    async with serving(tmp_path / "home") as provider:
        box = await provider.create(BoxSpec(), id="b-one")
        url = await box.open_guest_api()
        await works(box, "sh", "-c", "echo more > file")
        await box.snapshot()
        assert await ask(box, url) == "b-one asked for /hello"
        # One that never had a door has none after that either.
        other = await provider.create(BoxSpec(), id="b-other")
        await works(other, "sh", "-c", "echo more > file")
        await other.snapshot()
        assert (await other.exec(["curl", "--silent", f"{url}/hello"], timeout=30)).exit_code == 7
        for id in ("b-one", "b-other"):
            await provider.remove(id)


async def test_a_door_whose_port_was_taken_in_the_box_is_not_opened(tmp_path: Path) -> None:
    """Who listens there would be sent the tokens of runs."""
    async with serving(tmp_path / "home") as provider:
        box = await provider.create(BoxSpec(), id="b-taken")
        program = (
            f"import socket; s = socket.create_server(('127.0.0.1', {PROXY_PORT})); print('up', flush=True); s.accept()"
        )
        process = await box.spawn(["python3", "-c", program])
        async for chunk in process.output():
            assert chunk.data == b"up\n"
            break
        with pytest.raises(BoxConflict, match="listens on port"):
            await box.open_guest_api()
        await provider.remove("b-taken")


async def test_where_nobody_serves_a_home_its_boxes_have_no_door(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    async with LocalProvider(tmp_path / "home") as provider:
        box = await provider.create(BoxSpec(), id="b-alone")
        with pytest.raises(Unsupported, match="reach Holdfast"):
            await box.open_guest_api()
        await provider.remove("b-alone")
