"""Containers use secrets that they do not see."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
from tests.egress.bound_world import bound_world, check_secret
from tests.providers.docker.engine import PYTHON_IMAGE, DockerEngine

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.docker import DockerHost, DockerProvider

pytestmark = pytest.mark.anyio


async def test_a_container_uses_a_secret_that_it_does_not_see(engine: DockerEngine, tmp_path: Path) -> None:
    async with (
        bound_world(tmp_path) as bound,
        DockerProvider(DockerHost(engine.url), namespace=secrets.token_hex(4), egress=bound.world.proxy) as provider,
    ):
        await check_secret(bound, provider, BoxSpec(provider="docker", image=PYTHON_IMAGE))
