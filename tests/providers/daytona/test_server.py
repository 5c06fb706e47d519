"""Sandboxes through a server: made, used, and found again after it was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.client import Client
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


async def test_a_sandbox_outlives_its_server(daytona_server: ServerProcess, tmp_path: Path) -> None:
    spec = BoxSpec(provider="daytona")
    settings = {
        "daytona_api_key": daytona_server.api_key,
        "daytona_api_url": f"{daytona_server.url}/compat/daytona",
        "daytona_target": "local",
    }
    with ServerProcess(tmp_path / "home", provider_settings=settings) as server:
        async with Client(server.url, api_key=server.api_key) as client:
            made = await client.boxes.create(spec, key="lasting")
            async with await client.boxes.open(made.box.id) as box:
                assert (await box.exec(["sh", "-c", "echo kept > file; cat file"])).text == "kept\n"
                process = await box.spawn(["sh", "-c", "until [ -e go ]; do sleep 0.05; done; echo end; exit 6"])
        server.kill()
        server.start()
        async with Client(server.url, api_key=server.api_key) as client:
            again = await client.boxes.create(spec, key="lasting")
            assert (again.how, again.box.id) == ("resumed", made.box.id)
            async with await client.boxes.open(made.box.id) as box:
                await box.files.write("go", b"")
                found = await box.process(process.id)
                assert await found.wait(240) == 6
                assert await found.read() == b"end\n"
                await box.delete()


def test_a_server_starts_although_daytona_cannot_be_reached(tmp_path: Path) -> None:
    settings = {"daytona_api_key": "any", "daytona_api_url": "http://127.0.0.1:9"}
    with ServerProcess(tmp_path / "home", provider_settings=settings) as server:
        assert server.url
