"""A box of this machine: its ports and files are reached without the server, which is asked for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.serving import serving

from holdfast import Client
from holdfast.api.box.spec import OnIdle
from holdfast.api.errors.boxes import BoxStopped, ConnectRefused
from holdfast.boxes import BoxSpec
from holdfast.interpreter.direct_box import DirectBox, folder_of
from holdfast.providers.host.inotify import FileWatch
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio

ECHO = """
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    connection = listener.accept()[0]
    while data := connection.recv(1 << 16):
        connection.sendall(data)
"""


@pytest.fixture(scope="module")
def home_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("near") / "home") as server:
        yield server


@pytest.fixture
async def box(home_server: ServerProcess) -> AsyncIterator[DirectBox]:
    async with Client(home_server.url, api_key=home_server.api_key) as client:
        record = (await client.boxes.create(BoxSpec(), key="near")).box
        if record.state != "running":
            record = await client.boxes.start(record.id)
        assert folder_of(record, home_server.home) is not None
        watch = FileWatch()
        yield DirectBox(client.boxes.handle(record), record, home_server.home, watch)
        watch.close()


async def echo_port(box: DirectBox) -> int:
    process = await box.spawn([*await box.python(), "-c", ECHO], tree=True)
    async for piece in process.output():
        return int(piece.data)
    raise AssertionError("it said no port")


async def test_ports_and_files_go_on_while_the_server_is_away(box: DirectBox, home_server: ServerProcess) -> None:
    port = await echo_port(box)
    speaker = await box.spawn(["cat"], stdin=True)
    home_server.kill()
    try:
        async with await box.connect(port) as connection:
            await connection.write(b"hello")
            assert await connection.read() == b"hello"
        await box.files.write("notes", b"near")
        assert await box.files.read("/workspace/notes") == b"near"
        with pytest.raises(ConnectRefused):
            await box.connect(1)
        await speaker.write(b"said\n")
        await speaker.close_stdin()
        assert await speaker.wait(240) == 0
        assert await (await box.process(speaker.id)).read() == b"said\n"
        assert speaker.id in [each.id for each in await box.processes()]
    finally:
        home_server.start()


async def test_what_somebody_stopped_stays_so(box: DirectBox, home_server: ServerProcess) -> None:
    await box.stop()
    with pytest.raises(BoxStopped):
        await box.connect(80)
    with pytest.raises(BoxStopped):
        await box.files.read("notes")


async def test_a_box_of_another_home_is_left_to_the_server(
    box: DirectBox, home_server: ServerProcess, tmp_path: Path
) -> None:
    async with Client(home_server.url, api_key=home_server.api_key) as client:
        assert folder_of(await client.boxes.get(box.id), tmp_path) is None


async def test_one_that_sleeps_is_woken_by_the_server(home_server: ServerProcess) -> None:
    async with Client(home_server.url, api_key=home_server.api_key) as client:
        record = (await client.boxes.create(BoxSpec(idle_seconds=1, on_idle=OnIdle.HIBERNATE))).box
        watch = FileWatch()
        box = DirectBox(client.boxes.handle(record), record, home_server.home, watch)
        await box.files.write("kept", b"1")
        async with asyncio.timeout(240):
            while (await client.boxes.get(record.id)).state != "hibernated":  # noqa: ASYNC110 - the server tells nobody
                await asyncio.sleep(0.05)
        assert await box.files.read("kept") == b"1"
        watch.close()
        await client.boxes.delete(record.id)
