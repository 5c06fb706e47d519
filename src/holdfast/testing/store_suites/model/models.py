"""The contract of a model store as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from holdfast.egress.models.model import ModelRow, ModelStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

OWN: Final = ModelRow("own", '{"anthropic": "https://models.example.com/ü"}', "big", 200_000, 8_000, bytes(range(256)))
BUILT_IN: Final = ModelRow("openai", key=b"sealed")


async def load(store: ModelStore) -> dict[str, ModelRow]:
    """Returns all rows by name. The contract promises no order."""
    return {row.name: row for row in await store.load_all()}


@pytest.mark.anyio
class ModelSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[ModelStore]) -> AsyncIterator[ModelStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_row_comes_back_as_it_was(self, store: ModelStore) -> None:
        assert await store.load_all() == []
        bare = ModelRow("bare")
        for row in (OWN, BUILT_IN, bare):
            await store.put(row, 5)
        assert await load(store) == {"own": OWN, "openai": BUILT_IN, "bare": bare}

    async def test_a_row_is_replaced_whole(self, store: ModelStore) -> None:
        await store.put(OWN, 5)
        await store.put(BUILT_IN, 5)
        await store.put(ModelRow("own", model="small"), 6)
        assert await load(store) == {"own": ModelRow("own", model="small"), "openai": BUILT_IN}

    async def test_a_row_is_removed_once(self, store: ModelStore) -> None:
        await store.put(OWN, 5)
        await store.put(BUILT_IN, 5)
        assert await store.remove("own")
        assert not await store.remove("own")
        assert await load(store) == {"openai": BUILT_IN}

    async def test_what_was_acknowledged_is_there_for_another_server(self, open_store: OpenStore[ModelStore]) -> None:
        async with open_store(TENANT) as store, open_store(TENANT) as other:
            await store.put(OWN, 5)
            assert await load(other) == {"own": OWN}
            assert await other.remove("own")
            assert await load(store) == {}

    async def test_models_survive_a_restart(self, open_store: OpenStore[ModelStore]) -> None:
        async with open_store(TENANT) as store:
            await store.put(OWN, 5)
            await store.put(BUILT_IN, 5)
            await store.remove("openai")
        async with open_store(TENANT) as store:
            assert await load(store) == {"own": OWN}

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[ModelStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.put(OWN, 5)
            assert await other.load_all() == []
            await other.put(ModelRow("own"), 6)
            assert await other.remove("own")
            assert await load(store) == {"own": OWN}
