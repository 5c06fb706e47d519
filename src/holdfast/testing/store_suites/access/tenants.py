"""The contract of a store of the tenants of a server as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.api.access.tenants import TenantQuotas, TenantRecord
from holdfast.testing.store_suites.opener import TENANT, OpenStore
from holdfast.threads.access.members import TenantStore

QUOTAS = TenantQuotas(requests=2.5, boxes=0, runs=3, storage=1 << 40, spend=0.5)


@pytest.mark.anyio
class TenantSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[TenantStore]) -> AsyncIterator[TenantStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_tenants_are_listed_by_name_until_they_are_removed(self, store: TenantStore) -> None:
        assert await store.list() == []
        assert await store.add("b", 1)
        assert await store.add("a", 2)
        assert not await store.add("b", 3), "the name is taken"
        assert await store.list() == [TenantRecord(name="a", created_at=2), TenantRecord(name="b", created_at=1)]
        assert await store.remove("b")
        assert not await store.remove("b")
        assert await store.list() == [TenantRecord(name="a", created_at=2)]

    async def test_quotas_are_replaced_whole(self, store: TenantStore) -> None:
        await store.add("a", 1)
        await store.add("b", 1)
        assert await store.quotas() == {}
        await store.put_quotas("a", QUOTAS)
        assert await store.quotas() == {"a": QUOTAS}
        await store.put_quotas("a", TenantQuotas(boxes=7))
        assert await store.quotas() == {"a": TenantQuotas(boxes=7)}

    async def test_a_later_tenant_of_the_name_has_no_quotas(self, store: TenantStore) -> None:
        await store.add("a", 1)
        await store.put_quotas("a", QUOTAS)
        assert await store.remove("a")
        await store.add("a", 2)
        assert await store.quotas() == {}

    async def test_tenants_and_quotas_outlive_the_server(self, open_store: OpenStore[TenantStore]) -> None:
        async with open_store(TENANT) as store:
            await store.add("a", 1)
            await store.put_quotas("a", QUOTAS)
        async with open_store(TENANT) as store:
            assert await store.list() == [TenantRecord(name="a", created_at=1)]
            assert await store.quotas() == {"a": QUOTAS}
