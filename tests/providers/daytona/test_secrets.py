"""Boxes at Daytona use secrets that they do not see, as their traffic goes through the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.egress.bound_world import bound_world, check_secret
from tests.providers.daytona.conftest import account_of

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.daytona import DaytonaProvider
from holdfast.testing.server import ServerProcess

pytestmark = pytest.mark.anyio


async def test_a_box_uses_a_secret_that_it_does_not_see(daytona_server: ServerProcess, tmp_path: Path) -> None:
    async with (
        bound_world(tmp_path) as bound,
        DaytonaProvider(tmp_path / "home", account_of(daytona_server), egress=bound.world.proxy) as provider,
    ):
        await check_secret(bound, provider, BoxSpec(provider="daytona"))
