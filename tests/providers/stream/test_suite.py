"""A box at the end of a stream keeps the contract like any other."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.providers.stream.over_pipes import PipesProvider

from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite import ProviderSuite
from holdfast.testing.provider_suite.base import Reopen


@pytest.mark.sampled
class TestStream(ProviderSuite):
    claimed = PipesProvider.capabilities

    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("pipes")

    @pytest.fixture(scope="class")
    @classmethod
    async def provider(cls, home: Path) -> AsyncIterator[Provider]:
        async with PipesProvider(home) as provider:
            yield provider

    @pytest.fixture
    def reopen(self, home: Path) -> Reopen:
        async def again() -> Provider:
            other = PipesProvider(home)
            await other.open()
            return other

        return again
