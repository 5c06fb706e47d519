"""Boxes at Docker through a server: made, used, and found again after it was killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.providers.docker.engine import PYTHON_IMAGE, DockerEngine

from holdfast.api.box.spec import BoxSpec
from holdfast.client import Client
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


async def test_a_box_outlives_its_server(engine: DockerEngine, tmp_path: Path) -> None:
    spec = BoxSpec(provider="docker", image=PYTHON_IMAGE)
    with ServerProcess(tmp_path / "home", provider_settings={"docker_host": engine.url}) as server:
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
                fork = await box.fork()
                assert (await fork.files.read("file")) == b"kept\n"
                await fork.delete()
                await box.delete()
            images = await client.images.list(provider="docker")
            assert PYTHON_IMAGE in [image.name for image in images]


def test_a_server_without_a_daemon_starts_and_says_why_there_are_no_boxes(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", provider_settings={"docker_host": f"unix://{tmp_path}/none.sock"}) as server:
        assert server.url
