"""Boxes through the client: the same contract over the wire, on a real server, with dummies and real local boxes."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from tests.server.box_providers import dummies
from tests.serving import serving

from holdfast import Client, SyncClient
from holdfast.api.errors.boxes import (
    BoxGone,
    BoxNotFound,
    BoxStopped,
    CannotExecute,
    ConnectRefused,
    ExecTimeout,
    FileExists,
    FileMissing,
    HostileArchive,
    OutputTooLarge,
    ProcessNotFound,
    SnapshotNotFound,
    Unsupported,
    VolumeExists,
    VolumeNotFound,
)
from holdfast.boxes import Box, BoxSpec, FileKind, Owner, Power, ProcessState
from holdfast.client import HoldfastError, RemoteBox, Unauthorized, Unreachable
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="session", params=["dummy", "local"])
def box_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp(f"client-{request.param}") / "home"
    with serving(home, providers=dummies if request.param == "dummy" else None) as server:
        yield server


@pytest.fixture
async def client(box_server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(box_server.url, api_key=box_server.api_key, retry_seconds=5.0) as client:
        yield client


@pytest.fixture
async def box(client: Client) -> AsyncIterator[RemoteBox]:
    made = await client.boxes.create()
    async with await client.boxes.open(made.box.id) as box:
        yield box
    await client.boxes.delete(made.box.id)


async def test_a_box_is_made_found_and_deleted(client: Client) -> None:
    spec = BoxSpec(env={"SECRET": "s3cret-value"}, labels={"team": "a"})
    made = await client.boxes.create(spec, owner=Owner(thread="t-1", environment="ci"))
    record = await client.boxes.get(made.box.id)
    assert (made.how, made.replaced, record) == ("created", None, made.box)
    assert (record.state, record.owner.thread, record.labels["team"]) == ("running", "t-1", "a")
    assert "s3cret-value" not in repr(record)
    assert record.spec.env == ("SECRET",)
    assert record.spec.hash == spec.hash
    assert "s3cret-value" not in str(record.to_json())
    assert [each.id async for each in client.boxes.list(labels={"team": "a"})] == [record.id]
    assert (await client.boxes.delete(record.id)).freed > 0
    assert [each async for each in client.boxes.list(labels={"team": "a"})] == []
    [tombstone] = [each async for each in client.boxes.list(labels={"team": "a"}, all=True, limit=1)]
    assert tombstone.ended_at is not None
    with pytest.raises(BoxGone):
        await client.boxes.open(record.id)


async def test_the_box_of_a_key_is_one(client: Client) -> None:
    made = await asyncio.gather(*(client.boxes.create(key="raced") for _ in range(5)))
    assert len({each.box.id for each in made}) == 1
    await client.boxes.delete(made[0].box.id)


async def test_a_command_runs(box: RemoteBox) -> None:
    done = await box.exec(["sh", "-c", "cat; echo $A >&2; exit 3"], env={"A": "b"}, stdin=b"in")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"in", b"b\n")
    large = os.urandom(1 << 20)
    assert (await box.exec(["cat"], stdin=large)).stdout == large
    pieces: list[bytes] = []
    assert (await box.exec(["echo", "hi"], on_stdout=pieces.append)).stdout == b""
    assert b"".join(pieces) == b"hi\n"


async def test_stdin_may_be_a_stream(box: RemoteBox) -> None:
    heard = asyncio.Event()

    async def talk() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.wait_for(heard.wait(), 20)
        yield b"two"

    def listen(data: bytes) -> None:
        seen.append(data)
        heard.set()

    seen: list[bytes] = []
    done = await box.exec(["cat"], stdin=talk(), on_stdout=listen)
    assert (done.exit_code, b"".join(seen)) == (0, b"onetwo")


async def test_what_goes_wrong_is_the_same_error_as_anywhere(client: Client, box: RemoteBox) -> None:
    with pytest.raises(CannotExecute):
        await box.exec(["no-such-program"])
    with pytest.raises(ExecTimeout) as late:
        await box.exec(["sh", "-c", "echo before; sleep 60"], timeout=0.5)
    assert late.value.stdout == b"before\n"
    with pytest.raises(OutputTooLarge):
        await box.exec(["head", "-c", "100000", "/dev/zero"], max_output=1000)
    with pytest.raises(CannotExecute):
        await box.channel(["no-such-program"])
    with pytest.raises(CannotExecute):
        await box.spawn(["no-such-program"])
    with pytest.raises(FileMissing):
        await box.files.read("none")
    with pytest.raises(ProcessNotFound):
        await box.process("p-none")
    with pytest.raises(ConnectRefused):
        await box.connect(1)
    with pytest.raises(BoxNotFound):
        await client.boxes.get("b-none")
    with pytest.raises(SnapshotNotFound):
        await client.boxes.restore("s-none")
    with pytest.raises(VolumeNotFound):
        await client.boxes.volumes.delete("none")
    with pytest.raises(Unsupported) as refused:
        await client.boxes.create(BoxSpec(provider="elsewhere"))
    assert refused.value.hint


async def test_a_wrong_key_is_an_error_of_the_client(box_server: ServerProcess, box: RemoteBox) -> None:
    async with Client(box_server.url, api_key="hf_wrong", retry_seconds=0.0) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.boxes.get(box.id)
    async with Client("http://127.0.0.1:1", retry_seconds=0.0) as lost:
        with pytest.raises(Unreachable):
            await lost.boxes.get(box.id)


async def test_cancelling_kills_the_command(box: RemoteBox) -> None:
    started = asyncio.Event()
    running = asyncio.ensure_future(
        box.exec(["sh", "-c", "echo started; sleep 600; echo"], on_stdout=lambda _: started.set())
    )
    await asyncio.wait_for(started.wait(), 20)
    assert (await box.metrics()).processes > 0
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for _ in range(2000):
        if not (await box.metrics()).processes:
            break
        await asyncio.sleep(0.01)
    else:
        raise AssertionError("it goes on")


async def test_64_megabytes_come_through_in_flat_memory(box: RemoteBox) -> None:
    await box.exec(["true"])
    before, size = memory(), 0

    async def count(data: bytes) -> None:
        nonlocal size
        size += len(data)

    await box.exec(["head", "-c", str(64 << 20), "/dev/zero"], on_stdout=count)
    assert size == 64 << 20
    assert memory() - before < 16 << 20


async def test_a_slow_sink_holds_up_the_command(box: RemoteBox) -> None:
    begun, never = asyncio.Event(), asyncio.Event()
    before = memory()

    async def slow(data: bytes) -> None:
        begun.set()
        await never.wait()

    running = asyncio.ensure_future(box.exec(["head", "-c", str(128 << 20), "/dev/zero"], on_stdout=slow))
    await asyncio.wait_for(begun.wait(), 20)
    await box.metrics()
    assert not running.done()
    assert memory() - before < 16 << 20
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def memory() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


async def test_a_channel_is_talked_over(box: RemoteBox) -> None:
    async with await box.channel(["sh", "-c", "cat; echo oops >&2; exit 4"]) as channel:
        await channel.write(b"ping")
        assert await channel.read(2) == b"pi"
        assert await channel.read() == b"ng"
        await channel.close_write()
        assert await channel.read() == b""
        assert (await channel.wait(), channel.stderr) == (4, b"oops\n")


async def test_the_end_of_a_channel_can_be_awaited_before_its_output_is_read(box: RemoteBox) -> None:
    async with await box.channel(["head", "-c", "1000000", "/dev/zero"]) as channel:
        assert await channel.wait() == 0
        size = 0
        while data := await channel.read():
            size += len(data)
        assert size == 1_000_000


async def test_files_go_both_ways(box: RemoteBox, tmp_path: Path) -> None:
    files = box.files

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield bytes(1 << 20)

    await files.write("large", pieces(), mode=0o600)
    assert (await files.stat("large")).size == 20 << 20
    assert sum([len(piece) async for piece in files.stream("large", offset=1 << 20)]) == 19 << 20
    await files.write("folder/a.txt", b"one two\n")
    await files.chmod("folder/a.txt", 0o640)
    assert await files.read("folder/a.txt", offset=4, length=3) == b"two"
    assert [each.name for each in await files.list("folder")] == ["a.txt"]
    assert [match.line for match in await files.search("two")] == [1]
    assert [each.count for each in await files.replace("two", "2", ["folder/a.txt"])] == [1]
    await files.move("folder/a.txt", "folder/b.txt")
    assert [each.mode for each in await files.find(".", "b.txt")] == [0o640]
    await files.mkdir("empty/inner")
    assert (await files.stat("empty/inner")).kind is FileKind.FOLDER
    await files.delete("empty", recursive=True)
    assert not await files.exists("empty")


async def test_folders_go_both_ways(box: RemoteBox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "large").write_bytes(os.urandom(2 << 20))
    (source / "run").write_text("#!/bin/sh\n")
    (source / "run").chmod(0o755)
    (source / "link").symlink_to("run")
    await box.files.upload(source, "up")
    assert (await box.exec(["sh", "-c", "test -x up/run && readlink up/link"])).text == "run\n"
    await box.files.download("up", tmp_path / "down")
    assert (tmp_path / "down/inner/large").read_bytes() == (source / "inner/large").read_bytes()
    assert (tmp_path / "down/link").readlink() == Path("run")
    await box.files.upload(source / "run", "single")
    await box.files.download("single", tmp_path / "single")
    assert (tmp_path / "single").stat().st_mode & 0o777 == 0o755
    with pytest.raises(FileExists):
        await box.files.download("up", tmp_path / "down")
    with pytest.raises(FileMissing):
        await box.files.download("none", tmp_path / "none")
    with pytest.raises(FileMissing):
        await box.files.upload(tmp_path / "none", "none")
    assert {each.name for each in tmp_path.iterdir()} == {"source", "down", "single"}


async def test_what_a_box_says_is_an_archive_is_not_believed(
    box: RemoteBox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        folder = tarfile.TarInfo("./")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        archive.addfile(tarfile.TarInfo("../outside"), BytesIO(b""))

    async def hostile(path: str) -> AsyncGenerator[bytes, None]:
        yield packed.getvalue()

    monkeypatch.setattr(box.files, "download_tar", hostile)
    with pytest.raises(HostileArchive):
        await box.files.download("x", tmp_path / "in")
    assert list(tmp_path.iterdir()) == []


async def test_a_refused_archive_is_not_left_open(box: RemoteBox, tmp_path: Path) -> None:
    """What is left open is closed when the loop ends, in any order: then the reader gets a traceback."""
    await box.exec(["sh", "-c", "mkdir bent && ln -s /etc/passwd bent/a && head -c 9000000 /dev/zero > bent/z"])
    opened: list[Any] = []
    before = sys.get_asyncgen_hooks()

    def first(generator: Any) -> None:
        opened.append(generator)
        if before.firstiter is not None:
            before.firstiter(generator)

    sys.set_asyncgen_hooks(firstiter=first)
    try:
        with pytest.raises(HostileArchive):
            await box.files.download("bent", tmp_path / "in")
    finally:
        sys.set_asyncgen_hooks(firstiter=before.firstiter)
    ours = [each for each in opened if "/holdfast/client/" in each.ag_code.co_filename]
    assert ours
    assert [each for each in ours if each.ag_frame is not None] == []


async def test_snapshots_forks_and_volumes(client: Client, box: RemoteBox) -> None:
    await box.files.write("f", b"then")
    snapshot = await box.snapshot(labels={"why": "test"})
    await box.files.write("f", b"now")
    restored = await client.boxes.restore(snapshot.id)
    forked = await box.fork()
    assert await (await client.boxes.open(restored.id)).files.read("f") == b"then"
    assert await forked.files.read("f") == b"now"
    assert [each.id for each in await client.boxes.snapshots(box=box.id)] == [snapshot.id]
    carried = await client.boxes.import_snapshot(client.boxes.export_snapshot(snapshot.id))
    for id in (restored.id, forked.id):
        await client.boxes.delete(id)
    for id in (snapshot.id, carried.id):
        assert await client.boxes.delete_snapshot(id) >= 0
    await client.boxes.volumes.create("kept")
    with pytest.raises(VolumeExists):
        await client.boxes.volumes.create("kept")
    assert [each.name for each in await client.boxes.volumes.list()] == ["kept"]
    await client.boxes.volumes.delete("kept")


async def test_a_stopped_box_is_stopped(client: Client, box: RemoteBox) -> None:
    await box.stop()
    assert await box.power() is Power.STOPPED
    with pytest.raises(BoxStopped):
        await box.exec(["true"])
    await box.start()
    assert await box.power() is Power.RUNNING
    assert (await box.exec(["true"])).ok


async def test_a_box_is_looked_at(client: Client, box: RemoteBox) -> None:
    assert all(step.ok for step in await box.ping())
    assert await client.boxes.diagnose(box.id)
    assert (await box.metrics()).connections == 0
    assert f"-{box.id}.localhost" in (await box.preview(3000)).url
    assert (await client.boxes.prune()).failed == ()


def test_the_sync_twin_does_the_same(box_server: ServerProcess, tmp_path: Path) -> None:
    with SyncClient(box_server.url, api_key=box_server.api_key) as client:
        made = client.boxes.create(BoxSpec(labels={"by": "sync"}))
        with client.boxes.open(made.box.id) as box:
            assert box.exec(["cat"], stdin=b"hi").stdout == b"hi"
            box.files.write("f", b"data")
            assert box.files.read("f") == b"data"
            assert [each.id for each in client.boxes.list(labels={"by": "sync"})] == [made.box.id]
        client.boxes.stop(made.box.id)
        assert client.boxes.get(made.box.id).state == "stopped"
        assert client.boxes.delete(made.box.id).freed >= 0


# --- what only real boxes do ---


only_real = pytest.mark.parametrize("box_server", ["local"], indirect=True)
"""Dummies have no terminals and no ports of their own."""


@only_real
async def test_a_process_outlives_its_server_and_its_output_is_read_on(
    client: Client, box: RemoteBox, box_server: ServerProcess
) -> None:
    process = await box.spawn(["sh", "-c", "echo one; read x; echo two $x; exit 6"], stdin=True)
    output = process.output()
    chunk = await anext(output)
    assert (chunk.offset, chunk.data) == (0, b"one\n")
    again = await (await client.boxes.open(box.id)).process(process.id)
    await again.write(b"more\n")
    rest = [(each.offset, each.data) async for each in output]
    assert (rest, await again.wait(240)) == ([(4, b"two more\n")], 6)
    assert (await again.info()).state is ProcessState.EXITED
    assert await again.read(offset=4, limit=3) == b"two"
    assert process.id in [each.id for each in await box.processes()]


@only_real
async def test_waiting_for_a_process_has_an_end(box: RemoteBox) -> None:
    process = await box.spawn(["sleep", "600"])
    with pytest.raises(TimeoutError):
        await process.wait(0.2)
    await process.kill()
    assert await process.wait(240) == 137


@only_real
async def test_a_terminal_is_lent(box: RemoteBox) -> None:
    process = await box.spawn(["sh"], pty=True, rows=30, columns=100)
    async with process.attach() as terminal:
        await terminal.resize(40, 120)
        await terminal.write(b"stty size; exit 8\n")
        seen = b""
        while data := await terminal.read():
            seen += data
        assert b"40 120" in seen
        assert terminal.exit_code == 8


@only_real
async def test_a_port_is_connected_to(box: RemoteBox) -> None:
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 7001)); print('up', flush=True)\n"
        "c, _ = s.accept()\n"
        "while d := c.recv(99): c.sendall(d.upper())\n"
        "c.sendall(b'bye'); c.close()"
    )
    process = await box.spawn(["python3", "-c", program])
    assert (await anext(process.output())).data == b"up\n"
    async with await box.connect(7001) as connection:
        await connection.write(b"hello")
        assert await connection.read() == b"HELLO"
        await connection.close_write()
        assert await connection.read() == b"bye"
        assert await connection.read() == b""


async def test_a_lost_server_is_said_to_be_lost(tmp_path: Path) -> None:
    async with (
        ServerProcess(tmp_path / "home", providers=dummies) as server,
        Client(server.url, api_key=server.api_key, retry_seconds=0.0) as client,
    ):
        made = await client.boxes.create()
        box: Box = await client.boxes.open(made.box.id)
        started = asyncio.Event()
        running = asyncio.ensure_future(box.exec(["sh", "-c", "echo; sleep 6"], on_stdout=lambda _: started.set()))
        await asyncio.wait_for(started.wait(), 20)
        await asyncio.to_thread(server.kill)
        with pytest.raises(HoldfastError) as lost:
            await asyncio.wait_for(running, 20)
        assert isinstance(lost.value, Unreachable)
