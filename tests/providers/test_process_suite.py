"""The process provider keeps what it claims of the contract, and refuses the rest by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.boxes.provider import Provider
from holdfast.providers.process import ProcessProvider
from holdfast.testing.provider_suite import ProviderSuite
from holdfast.testing.provider_suite.base import Reopen


@pytest.mark.sampled
class TestProcess(ProviderSuite):
    claimed = ProcessProvider.capabilities

    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("process")

    @pytest.fixture(scope="class")
    @classmethod
    async def provider(cls, home: Path) -> AsyncIterator[Provider]:
        async with ProcessProvider(home) as provider:
            yield provider

    @pytest.fixture
    def reopen(self, home: Path) -> Reopen:
        async def again() -> Provider:
            other = ProcessProvider(home)
            await other.open()
            return other

        return again
