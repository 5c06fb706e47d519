"""The sprites provider keeps the contract, against the counterpart of the Sprites API."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.stores import open_records

from holdfast.boxes.provider import Provider
from holdfast.egress import EgressProxy
from holdfast.providers.sprites import Account, SpritesProvider
from holdfast.testing.outside import Nowhere
from holdfast.testing.provider_suite import ProviderSuite
from holdfast.testing.provider_suite.base import Reopen
from holdfast.testing.sprites import SpritesCounterpart


@pytest.mark.sampled(share=0.2)
class TestSprites(ProviderSuite):
    claimed = SpritesProvider.capabilities

    @pytest.fixture(scope="class")
    @classmethod
    def namespace(cls) -> str:
        return secrets.token_hex(4)

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("home") / "sprites"

    @pytest.fixture(scope="class")
    @classmethod
    async def provider(
        cls,
        counterpart: SpritesCounterpart,
        namespace: str,
        folder: Path,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> AsyncIterator[Provider]:
        account = Account(counterpart.token, counterpart.url)
        async with (
            open_records(tmp_path_factory.mktemp("egress") / "data.db") as records,
            EgressProxy(Nowhere(), Nowhere(), records) as egress,
            SpritesProvider(account, namespace=namespace, folder=folder, egress=egress) as provider,
        ):
            yield provider

    @pytest.fixture
    def reopen(self, counterpart: SpritesCounterpart, namespace: str, folder: Path) -> Reopen:
        async def again() -> Provider:
            account = Account(counterpart.token, counterpart.url)
            other = SpritesProvider(account, namespace=namespace, folder=folder)
            await other.open()
            return other

        return again
