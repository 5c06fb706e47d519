"""Sprites use secrets that they do not see, as their traffic goes through the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.egress.bound_world import bound_world, check_secret

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.sprites import Account, SpritesProvider
from holdfast.testing.sprites import SpritesCounterpart

pytestmark = pytest.mark.anyio


async def test_a_sprite_uses_a_secret_that_it_does_not_see(counterpart: SpritesCounterpart, tmp_path: Path) -> None:
    account = Account(counterpart.token, counterpart.url)
    async with (
        bound_world(tmp_path) as bound,
        SpritesProvider(
            account, namespace="secrets", folder=tmp_path / "sprites", egress=bound.world.proxy
        ) as provider,
    ):
        await check_secret(bound, provider, BoxSpec(provider="sprites"))
