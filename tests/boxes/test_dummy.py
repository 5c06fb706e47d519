"""The dummy provider keeps the contract of providers, for what it claims."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from holdfast.boxes.errors import BoxUnreachable, NoSpace, Unsupported
from holdfast.boxes.provider import Provider
from holdfast.boxes.spec import BoxSpec
from holdfast.testing.dummy import DummyProvider
from holdfast.testing.provider_suite import ProviderSuite
from holdfast.testing.provider_suite.ground import Hatchery


class TestDummy(ProviderSuite):
    @pytest.fixture
    def ground(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("ground")

    @pytest.fixture
    async def provider(self, ground: Path) -> AsyncIterator[Provider]:
        async with DummyProvider(ground) as provider:
            yield provider

    @pytest.fixture
    def reopen(self, ground: Path) -> Callable[[], Awaitable[Provider]]:
        async def again() -> Provider:
            other = DummyProvider(ground)
            await other.open()
            return other

        return again

    async def test_a_volume_that_is_read_only_is_not_written_to(self, hatchery: Hatchery) -> None:
        """Nothing confines a dummy box, so it does not pretend."""
        with pytest.raises(Unsupported, match="no read-only volumes"):
            await hatchery.box(volumes=(hatchery.mount(await hatchery.volume(), read_only=True),))


@pytest.mark.anyio
async def test_failures_are_made_to_order(tmp_path: Path) -> None:
    async with DummyProvider(tmp_path) as provider:
        provider.fail_next("create", NoSpace("one"))
        provider.fail_next("create", BoxUnreachable("two"))
        for expected in (NoSpace, BoxUnreachable):
            with pytest.raises(expected):
                await provider.create(BoxSpec(provider="dummy"), id="b-1")
        assert (await provider.create(BoxSpec(provider="dummy"), id="b-1")).id == "b-1"
        assert provider.calls["create"] == 3
