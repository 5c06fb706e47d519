"""The contract of a store of prices as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.egress.models.prices import PriceStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore


@pytest.mark.anyio
class PriceSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[PriceStore]) -> AsyncIterator[PriceStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_price_comes_back_as_it_was_and_is_replaced(self, store: PriceStore) -> None:
        assert await store.load_all() == {}
        await store.put("mine/a/b", '{"input": 1}', 5)
        await store.put("mine/ü", '{"input": 2}', 5)
        await store.put("mine/a/b", '{"input": 3}', 6)
        assert await store.load_all() == {"mine/a/b": '{"input": 3}', "mine/ü": '{"input": 2}'}

    async def test_a_price_is_removed_once(self, store: PriceStore) -> None:
        await store.put("mine/a", "{}", 5)
        assert await store.remove("mine/a")
        assert not await store.remove("mine/a")
        assert await store.load_all() == {}

    async def test_prices_survive_a_restart(self, open_store: OpenStore[PriceStore]) -> None:
        async with open_store(TENANT) as store:
            await store.put("mine/a", "{}", 5)
        async with open_store(TENANT) as store:
            assert await store.load_all() == {"mine/a": "{}"}

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[PriceStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.put("mine/a", "{}", 5)
            assert await other.load_all() == {}
            assert not await other.remove("mine/a")
