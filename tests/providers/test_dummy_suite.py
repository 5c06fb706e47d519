"""The dummy provider keeps the contract that the tests of everything above it rely on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.boxes.provider import Provider
from holdfast.testing.dummy import CAPABILITIES, DummyProvider
from holdfast.testing.provider_suite import ProviderSuite
from holdfast.testing.provider_suite.base import Reopen


class TestDummy(ProviderSuite):
    claimed = CAPABILITIES

    @pytest.fixture
    async def provider(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Provider]:
        async with DummyProvider(tmp_path_factory.getbasetemp() / "dummy") as provider:
            yield provider

    @pytest.fixture
    def reopen(self, provider: DummyProvider) -> Reopen:
        async def again() -> Provider:
            other = DummyProvider(provider.folder)
            await other.open()
            return other

        return again
