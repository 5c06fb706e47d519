from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.sessions.tools.world import ToolWorld, a_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ToolWorld]:
    async with a_world(tmp_path) as world:
        yield world
