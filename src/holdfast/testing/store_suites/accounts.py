"""The contract of a store of provider accounts as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from holdfast.providers.accounts import AccountRow, AccountStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

WORK: Final = AccountRow("work", "modal", '{"modal_app": "büro"}', bytes(range(256)))
BARE: Final = AccountRow("modal", "modal")


async def load(store: AccountStore) -> dict[str, AccountRow]:
    """Returns all rows by name. The contract promises no order."""
    return {row.name: row for row in await store.load_all()}


@pytest.mark.anyio
class AccountSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[AccountStore]) -> AsyncIterator[AccountStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_row_comes_back_as_it_was(self, store: AccountStore) -> None:
        assert await store.load_all() == []
        for row in (WORK, BARE):
            await store.put(row, 5)
        assert await load(store) == {"work": WORK, "modal": BARE}

    async def test_a_row_is_replaced_whole(self, store: AccountStore) -> None:
        await store.put(WORK, 5)
        await store.put(BARE, 5)
        await store.put(AccountRow("work", "sprites"), 6)
        assert await load(store) == {"work": AccountRow("work", "sprites"), "modal": BARE}

    async def test_a_row_is_removed_once(self, store: AccountStore) -> None:
        await store.put(WORK, 5)
        await store.put(BARE, 5)
        assert await store.remove("work")
        assert not await store.remove("work")
        assert await load(store) == {"modal": BARE}

    async def test_what_was_acknowledged_is_there_for_another_server(self, open_store: OpenStore[AccountStore]) -> None:
        async with open_store(TENANT) as store, open_store(TENANT) as other:
            await store.put(WORK, 5)
            assert await load(other) == {"work": WORK}
            assert await other.remove("work")
            assert await load(store) == {}

    async def test_accounts_survive_a_restart(self, open_store: OpenStore[AccountStore]) -> None:
        async with open_store(TENANT) as store:
            await store.put(WORK, 5)
            await store.put(BARE, 5)
            await store.remove("modal")
        async with open_store(TENANT) as store:
            assert await load(store) == {"work": WORK}

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[AccountStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.put(WORK, 5)
            assert await other.load_all() == []
            await other.put(AccountRow("work", "sprites"), 6)
            assert await other.remove("work")
            assert await load(store) == {"work": WORK}
