"""The contract of a store of budgets as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.egress.models.budgets import BudgetStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore


@pytest.mark.anyio
class BudgetSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[BudgetStore]) -> AsyncIterator[BudgetStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_budget_comes_back_as_it_was_and_is_replaced(self, store: BudgetStore) -> None:
        assert await store.load_all() == {}
        await store.put("thread", "t-1", '{"cost": 1}', 5)
        await store.put("tree", "t-1", '{"cost": 2}', 5)
        await store.put("day", "", '{"cost": 3}', 5)
        await store.put("thread", "t-1", '{"cost": 4}', 6)
        assert await store.load_all() == {
            ("thread", "t-1"): '{"cost": 4}',
            ("tree", "t-1"): '{"cost": 2}',
            ("day", ""): '{"cost": 3}',
        }

    async def test_a_budget_is_removed_once(self, store: BudgetStore) -> None:
        await store.put("thread", "t-1", "{}", 5)
        await store.put("tree", "t-1", "{}", 5)
        assert await store.remove("thread", "t-1")
        assert not await store.remove("thread", "t-1")
        assert await store.load_all() == {("tree", "t-1"): "{}"}

    async def test_budgets_survive_a_restart(self, open_store: OpenStore[BudgetStore]) -> None:
        async with open_store(TENANT) as store:
            await store.put("day", "", "{}", 5)
        async with open_store(TENANT) as store:
            assert await store.load_all() == {("day", ""): "{}"}

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[BudgetStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.put("day", "", "{}", 5)
            assert await other.load_all() == {}
            assert not await other.remove("day", "")
