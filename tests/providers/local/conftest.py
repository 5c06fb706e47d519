"""One scene for each file of attacks: boxes are quick to make, and quicker not to make."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.providers.local.attacking import Scene

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.local import LocalProvider


@pytest.fixture(scope="module")
async def scene(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Scene]:
    home: Path = tmp_path_factory.mktemp("attacked")
    async with LocalProvider(home) as provider:
        box = await provider.create(BoxSpec(), id="attacker")
        neighbour = await provider.create(BoxSpec(env={"SECRET": "neighbours-secret"}), id="neighbour")
        yield Scene(home, provider, box, neighbour)
        await box.delete()
        await neighbour.delete()
