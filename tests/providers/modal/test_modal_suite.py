"""The modal provider keeps the contract, against a counterpart of Modal's API and with the vendor's SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.stores import open_records

from holdfast.boxes.provider import Provider
from holdfast.egress import EgressProxy
from holdfast.providers.modal import Credentials, ModalProvider
from holdfast.providers.modal.provider import CAPABILITIES
from holdfast.testing.modal import ModalCloud
from holdfast.testing.outside import Nowhere
from holdfast.testing.provider_suite import ProviderSuite
from holdfast.testing.provider_suite.base import Reopen


@pytest.mark.sampled(share=0.2)
class TestModal(ProviderSuite):
    claimed = CAPABILITIES

    @pytest.fixture(scope="class")
    @classmethod
    async def cloud(cls, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ModalCloud]:
        async with ModalCloud(tmp_path_factory.mktemp("cloud")) as cloud:
            yield cloud

    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("modal")

    @pytest.fixture(scope="class")
    @classmethod
    async def provider(cls, cloud: ModalCloud, home: Path) -> AsyncIterator[Provider]:
        credentials = Credentials(cloud.token_id, cloud.token_secret, cloud.url)
        async with (
            open_records(home / "data.db") as records,
            EgressProxy(Nowhere(), Nowhere(), records) as egress,
            ModalProvider(home, credentials, egress=egress) as provider,
        ):
            yield provider

    @pytest.fixture
    def reopen(self, cloud: ModalCloud, home: Path) -> Reopen:
        async def again() -> Provider:
            other = ModalProvider(home, Credentials(cloud.token_id, cloud.token_secret, cloud.url))
            await other.open()
            return other

        return again
