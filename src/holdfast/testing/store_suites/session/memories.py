"""The contract of a store of memories as tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import pytest

from holdfast.sessions.tools.memory_rows import MemoryRow, MemoryStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

MOST: Final = 100


def memory(number: int, content: str, category: str = "fact", root: str = "t-root") -> MemoryRow:
    return MemoryRow(f"m-{number}", category, content, "t-1", root, number)


def ids(rows: list[MemoryRow]) -> list[str]:
    return [each.id for each in rows]


@pytest.mark.anyio
class MemorySuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[MemoryStore]) -> AsyncIterator[MemoryStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_memory_comes_back_as_it_was(self, store: MemoryStore) -> None:
        assert await store.find(None, None, 10) == []
        assert await store.find("anything", None, 10) == []
        row = memory(1, "the büro's build needs node 24\n{}\x01")
        assert await store.add(row, MOST)
        assert await store.get("m-1") == row
        assert await store.get("m-2") is None
        assert await store.find(None, None, 10) == [row]

    async def test_words_are_found_in_any_case_without_accents_and_by_their_beginning(self, store: MemoryStore) -> None:
        await store.add(memory(1, "The BÜRO deploys with Kubernetes"), MOST)
        await store.add(memory(2, "the shop deploys by hand"), MOST)
        assert ids(await store.find("buro", None, 10)) == ["m-1"]
        assert ids(await store.find("kuber deploys", None, 10)) == ["m-1"]
        assert sorted(ids(await store.find("deploy", None, 10))) == ["m-1", "m-2"]
        assert await store.find("deploys nothing", None, 10) == []

    async def test_the_best_match_comes_first_and_without_a_query_the_latest(self, store: MemoryStore) -> None:
        await store.add(memory(1, "cache " * 5), MOST)
        await store.add(memory(2, "cache " + "something else " * 50), MOST)
        assert ids(await store.find("cache", None, 10)) == ["m-1", "m-2"]
        assert ids(await store.find("cache", None, 1)) == ["m-1"]
        assert ids(await store.find(None, None, 10)) == ["m-2", "m-1"]

    async def test_a_category_limits_both(self, store: MemoryStore) -> None:
        await store.add(memory(1, "tea", "fact"), MOST)
        await store.add(memory(2, "tea", "taste"), MOST)
        assert ids(await store.find("tea", "taste", 10)) == ["m-2"]
        assert ids(await store.find(None, "fact", 10)) == ["m-1"]

    @pytest.mark.parametrize(
        "query", ['"', "* OR", "a:b", "NEAR(a b)", "-a", "(", "^", "'; DROP TABLE", "{", "", "\x01"]
    )
    async def test_a_query_has_no_operators(self, store: MemoryStore, query: str) -> None:
        await store.add(memory(1, "something"), MOST)
        assert await store.find(query, None, 10) == []

    async def test_there_are_no_more_than_the_limit(self, store: MemoryStore) -> None:
        added = await asyncio.gather(*(store.add(memory(number, "x"), 3) for number in range(6)))
        assert sum(added) == len(await store.find(None, None, 10)) == 3

    async def test_a_memory_that_is_added_twice_stays_as_it_was(self, store: MemoryStore) -> None:
        await store.add(memory(1, "first"), 1)
        assert await store.add(memory(1, "second"), 1)
        assert [each.content for each in await store.find(None, None, 10)] == ["first"]
        assert await store.find("second", None, 10) == []

    async def test_a_removed_memory_is_found_no_more(self, store: MemoryStore) -> None:
        await store.add(memory(1, "tea", root="t-a"), MOST)
        assert not await store.remove("m-1", "t-b")
        assert await store.remove("m-1", "t-a")
        assert not await store.remove("m-1")
        assert await store.find("tea", None, 10) == []
        await store.add(memory(2, "tea"), MOST)
        assert await store.remove("m-2")

    async def test_what_was_acknowledged_survives_a_restart(self, open_store: OpenStore[MemoryStore]) -> None:
        async with open_store(TENANT) as store:
            await store.add(memory(1, "tea"), MOST)
        async with open_store(TENANT) as store:
            assert ids(await store.find("tea", None, 10)) == ["m-1"]

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[MemoryStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.add(memory(1, "tea"), 1)
            assert await other.find("tea", None, 10) == []
            assert await other.get("m-1") is None
            assert not await other.remove("m-1")
            assert await other.add(memory(1, "coffee"), 1)
            assert [each.content for each in await store.find(None, None, 10)] == ["tea"]
