"""The sync twins of providers and boxes do what the async ones do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.boxes.conftest import SPEC

from holdfast.api.box.box import Liveness, Power
from holdfast.api.errors.boxes import BoxGone, FileMissing
from holdfast.boxes.sync import SyncProvider
from holdfast.testing.dummy import DummyProvider


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[SyncProvider]:
    with SyncProvider(DummyProvider(tmp_path)) as provider:
        yield provider


def test_a_life_without_await(provider: SyncProvider, tmp_path: Path) -> None:
    with provider.create(SPEC, id="b-1", labels={"a": "1"}) as box:
        assert box.exec(["cat"], stdin=b"hello").text == "hello"
        box.files.write("folder/a", (piece for piece in (b"one ", b"two")))
        assert b"".join(box.files.stream("folder/a")) == b"one two"
        assert [info.name for info in box.files.list("folder")] == ["a"]
        box.files.upload_tar(box.files.download_tar("folder"), "copy")
        assert box.files.read("copy/a") == b"one two"
        with pytest.raises(FileMissing):
            box.files.read("none")
        process = box.spawn(["sh", "-c", "echo out; cat"], stdin=True)
        process.write(b"in")
        process.close_stdin()
        assert b"".join(chunk.data for chunk in process.output()) == b"out\nin"
        assert process.wait(240) == 0
        assert box.process(process.id).read(offset=4) == b"in"
        with box.channel(["cat"]) as channel:
            channel.write(b"ping")
            assert channel.read() == b"ping"
            channel.close_write()
            assert channel.wait() == 0
        snapshot = box.snapshot()
        kept = provider.import_snapshot(provider.export_snapshot(snapshot.id))
        with box.fork(id="b-2"), provider.restore(kept.id, SPEC, id="b-3") as restored:
            assert restored.files.read("folder/a") == b"one two"
        box.stop()
        assert box.power() is Power.STOPPED
        box.start()
        assert box.metrics().processes == 0
        assert all(step.ok for step in box.ping())
        assert box.delete().freed > 0
        with pytest.raises(BoxGone):
            box.exec(["true"])
    assert provider.probe("b-1") is Liveness.GONE
    assert {info.id for info in provider.find()} == {"b-2", "b-3"}


def test_a_port_without_await(provider: SyncProvider) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        provider.create(SPEC, id="b-1") as box,
        box.connect(listening.getsockname()[1]) as connection,
    ):
        there, _ = listening.accept()
        with there:
            connection.write(b"ping")
            assert there.recv(240) == b"ping"
            there.sendall(b"pong")
            assert connection.read() == b"pong"


def test_output_that_is_left_early_is_let_go(provider: SyncProvider) -> None:
    with provider.create(SPEC, id="b-1") as box:
        process = box.spawn(["sh", "-c", "echo one; exec cat"], stdin=True)
        with process.output() as output:
            assert next(output).data == b"one\n"
        process.kill()
        assert process.wait(240) == 137


def test_threads_share_a_provider(provider: SyncProvider) -> None:
    box = provider.create(SPEC, id="b-1")
    seen: list[str] = []
    threads = [
        threading.Thread(target=lambda number=number: seen.append(box.exec(["echo", str(number)]).text))
        for number in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [f"{number}\n" for number in range(5)]
    box.close()
