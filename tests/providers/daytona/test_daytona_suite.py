"""The daytona provider keeps the contract, against our own Daytona API and with the vendor's SDK."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.providers.daytona.conftest import account_of
from tests.stores import open_records

from holdfast.api.box.box import Liveness
from holdfast.api.errors.boxes import Unsupported, VolumeInUse, VolumeNotFound
from holdfast.boxes.provider import Provider
from holdfast.egress import EgressProxy
from holdfast.providers.daytona import DaytonaProvider
from holdfast.providers.daytona.provider import CAPABILITIES
from holdfast.testing.outside import Nowhere
from holdfast.testing.provider_suite import ProviderSuite
from holdfast.testing.provider_suite.base import BoxFactory, Reopen, fresh
from holdfast.testing.server import ServerProcess


@pytest.mark.sampled(share=0.2)
class TestDaytona(ProviderSuite):
    claimed = CAPABILITIES

    @pytest.fixture(scope="class")
    @classmethod
    def home(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("daytona")

    @pytest.fixture(scope="class")
    @classmethod
    async def provider(cls, daytona_server: ServerProcess, home: Path) -> AsyncIterator[Provider]:
        async with (
            open_records(home / "data.db") as records,
            EgressProxy(Nowhere(), Nowhere(), records) as egress,
            DaytonaProvider(home / "boxes", account_of(daytona_server), egress=egress) as provider,
        ):
            yield provider

    @pytest.fixture
    def reopen(self, daytona_server: ServerProcess, home: Path) -> Reopen:
        async def again() -> Provider:
            other = DaytonaProvider(home / "boxes", account_of(daytona_server))
            await other.open()
            return other

        return again

    # --- what Daytona cannot do, or does not tell ---

    async def test_a_volume_that_is_read_only_is_not_written_to(self, provider: Provider, factory: BoxFactory) -> None:  # type: ignore[override]
        volume = await factory.volume()
        id = factory.expect(fresh("box"))
        with pytest.raises(Unsupported, match="read-only volumes"):
            await factory.box(id=id, volumes=(factory.mount(volume, read_only=True),))
        assert await provider.probe(id) is Liveness.GONE

    async def test_a_volume_in_use_is_not_deleted(self, provider: Provider, factory: BoxFactory) -> None:
        volume = await factory.volume()
        box = await factory.box(volumes=(factory.mount(volume),))
        with pytest.raises(VolumeInUse):
            await provider.delete_volume(volume)
        await box.stop()
        with pytest.raises(VolumeInUse):
            await provider.delete_volume(volume)
        await box.delete()
        assert await provider.delete_volume(volume) == 0
        with pytest.raises(VolumeNotFound):
            await provider.delete_volume(volume)
