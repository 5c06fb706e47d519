"""A server that is killed while secrets change has each of them whole: a value that opens, and its events."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from pathlib import Path

import pytest
from tests.stores import open_secrets

from holdfast.api.errors import HoldfastError
from holdfast.api.secrets import Binding, SecretAction
from holdfast.client import SyncClient
from holdfast.storage.sqlite import DATABASE, SECRET
from holdfast.storage.sqlite.secret_file import SecretFile
from holdfast.testing.server import ServerProcess
from holdfast.threads.access.credentials import derive

HOST = [Binding(host="api.example.com")]


def value(version: int) -> str:
    return f"sk-live-0123456789-{version}"


@pytest.mark.anyio
async def test_a_change_that_was_acknowledged_is_there_and_no_secret_is_half_changed(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    moments = random.Random(int(os.environ.get("HOLDFAST_TEST_SEED", "0")))
    acknowledged = 0
    with ServerProcess(home) as server:
        for _ in range(3):
            with SyncClient(server.url, api_key=server.api_key, retry_seconds=0) as client:
                if not acknowledged:
                    acknowledged = client.secrets.set("TOKEN", value(1), HOST).version
                timer = threading.Timer(moments.uniform(0.05, 0.4), server.kill)
                timer.start()
                with contextlib.suppress(HoldfastError):
                    while True:
                        acknowledged = client.secrets.rotate("TOKEN", value(acknowledged + 1)).version
                timer.join()
            root = await SecretFile(home / SECRET).root()
            async with open_secrets(home / DATABASE, derive(root, "named secrets")) as secrets:
                found = secrets.get("TOKEN").version
                assert found in (acknowledged, acknowledged + 1)  # the last one was perhaps not acknowledged
                assert secrets.reveal("TOKEN") == value(found)
                events = await secrets.events("TOKEN", 1000)
                assert [each.version for each in events] == list(range(found, 0, -1))
                assert events[0].action is (SecretAction.ROTATED if found > 1 else SecretAction.SET)
            acknowledged = found
            server.start()
