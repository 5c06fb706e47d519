"""Commands that follow something go on when the server of the home is restarted, with its next key."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.server.box_providers import dummies
from tests.serving import serving

from holdfast import SyncClient
from holdfast.testing.server import ServerProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """One of its own: it is restarted."""
    with serving(tmp_path / "home", providers=dummies, long_poll_timeout=0.5) as server:
        yield server


@contextmanager
def command(server: ServerProcess, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    given = [sys.executable, "-m", "holdfast", *arguments[:2], "--home", str(server.home), *arguments[2:]]
    with subprocess.Popen(given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_thread_tail_goes_on(server: ServerProcess) -> None:
    with SyncClient(server.url, api_key=server.api_key) as client:
        thread = client.threads.create().id
    with command(server, "thread", "tail", thread) as tail:
        assert tail.stdout is not None
        assert "signal.thread.created" in tail.stdout.readline()
        server.restart()
        with SyncClient(server.url, api_key=server.api_key) as client:
            client.thread(thread).chat("after")
        assert tail.stdout.readline().endswith("user: after\n")


def test_box_logs_go_on(server: ServerProcess) -> None:
    with SyncClient(server.url, api_key=server.api_key) as client:
        made = client.boxes.create().box.id
        with client.boxes.open(made) as box:
            process = box.spawn(["sh", "-c", "echo one; read line; echo $line"], stdin=True).id
    with command(server, "box", "logs", made, process, "--follow") as logs:
        assert logs.stdout is not None
        assert logs.stdout.readline() == "one\n"
        server.restart()
        with SyncClient(server.url, api_key=server.api_key) as client, client.boxes.open(made) as box:
            box.process(process).write(b"two\n")
        assert logs.stdout.readline() == "two\n"
