from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.sessions.world import SessionWorld, a_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SessionWorld]:
    async with a_world(tmp_path) as world:
        yield world
