"""Agents are copied into boxes of Docker."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harnesses.npm_world import Registry, script_agent, tiny_agent
from tests.providers.docker.engine import PYTHON_IMAGE, CannotStart, DockerEngine

from holdfast.api.box.spec import BoxSpec
from holdfast.api.errors.agents import CannotInstall
from holdfast.api.ids import new_id
from holdfast.harnesses.installation import Tools
from holdfast.harnesses.placement import ensure
from holdfast.providers.docker import DockerHost, DockerProvider

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def engine() -> Iterator[DockerEngine]:
    try:
        with DockerEngine() as engine:
            yield engine
    except CannotStart as error:
        pytest.skip(str(error))


async def test_an_agent_is_copied_into_a_container_once(
    engine: DockerEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with Registry() as mirror:
        monkeypatch.setenv("npm_config_registry", mirror.url)
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
        program = "#!/bin/sh\necho $@\n"
        agent = tiny_agent(tmp_path / "tiny", mirror, {}, {"bin/tiny": (program, 0o755)})
        tools = Tools(tmp_path / "home")
        async with DockerProvider(DockerHost(engine.url), namespace=secrets.token_hex(4)) as provider:
            box = await provider.create(BoxSpec(provider="docker", image=PYTHON_IMAGE), id=new_id("b"))
            try:
                placed = await ensure(box, agent, tools)
                assert (await box.exec([f"{placed.program}/node_modules/.bin/tiny", "it", "runs"])).text == "it runs\n"
                # What node needs is not in this image.
                with pytest.raises(CannotInstall, match="does not run in this box") as caught:
                    await ensure(box, script_agent(tmp_path / "script", mirror), tools)
                assert "image" in (caught.value.hint or "")
                monkeypatch.setattr(type(box.files), "upload", None)  # nothing is sent again
                assert await ensure(box, agent, tools) == placed
            finally:
                await provider.remove(box.id)
