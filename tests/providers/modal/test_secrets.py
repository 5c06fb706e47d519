"""Boxes at Modal use secrets that they do not see, as their traffic goes through the server."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.egress.bound_world import bound_world, check_secret

from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.capabilities import Capability
from holdfast.providers.modal import Credentials, ModalProvider

pytestmark = pytest.mark.anyio


@pytest.mark.box
async def test_a_box_uses_a_secret_that_it_does_not_see(tmp_path: Path, credentials: Credentials) -> None:
    async with (
        bound_world(tmp_path) as bound,
        ModalProvider(tmp_path / "home", credentials, egress=bound.world.proxy) as provider,
    ):
        await check_secret(bound, provider, BoxSpec(provider="modal"))


async def test_a_box_with_a_network_of_its_own_gets_none(tmp_path: Path, credentials: Credentials) -> None:
    async with bound_world(tmp_path) as bound:
        direct = ModalProvider(tmp_path / "home", credentials, egress=bound.world.proxy, direct=True)
        assert Capability.SECRETS not in direct.capabilities
