"""The local provider keeps the contract whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.stores import open_records

from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.egress import EgressProxy
from holdfast.providers.local import LocalProvider
from holdfast.testing.outside import Nowhere
from holdfast.testing.provider_suite import ProviderSuite
from holdfast.testing.provider_suite.base import Reopen


class TestLocal(ProviderSuite):
    claimed = frozenset(Capability) - {Capability.PREVIEW}

    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("local")

    @pytest.fixture(scope="class")
    @classmethod
    async def provider(cls, home: Path) -> AsyncIterator[Provider]:
        async with (
            open_records(home / "data.db") as records,
            EgressProxy(Nowhere(), Nowhere(), records) as egress,
            LocalProvider(home, egress=egress) as provider,
        ):
            yield provider

    @pytest.fixture
    def reopen(self, home: Path) -> Reopen:
        async def again() -> Provider:
            other = LocalProvider(home)
            await other.open()
            return other

        return again
