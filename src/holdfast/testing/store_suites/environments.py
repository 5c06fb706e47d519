"""The contract of a store of environments as tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.environments.store import EnvironmentRow, EnvironmentStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore


async def add(store: EnvironmentStore, name: str, text: str, after: int | None = None) -> EnvironmentRow | None:
    return await store.add(name, f"digest of {text}", text, by="somebody", now=5, after=after)


@pytest.mark.anyio
class EnvironmentSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[EnvironmentStore]) -> AsyncIterator[EnvironmentStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_versions_count_up_and_stay(self, store: EnvironmentStore) -> None:
        assert await store.latest() == []
        first, second = await add(store, "web", "ü = 1"), await add(store, "web", "ü = 2")
        assert first == EnvironmentRow("web", 1, "digest of ü = 1", "ü = 1", 5, "somebody")
        assert second is not None
        assert second.version == 2
        assert await store.versions("web") == [second, first]
        assert await store.get("web") == second
        assert await store.get("web", 1) == first
        assert await store.get("web", 3) is None
        assert await store.get("other") is None

    async def test_the_latest_versions_are_listed_by_name(self, store: EnvironmentStore) -> None:
        for name, text in (("b", "1"), ("a", "1"), ("b", "2")):
            await add(store, name, text)
        assert [(each.name, each.version) for each in await store.latest()] == [("a", 1), ("b", 2)]

    async def test_a_version_follows_the_expected_one_or_is_not_stored(self, store: EnvironmentStore) -> None:
        assert await add(store, "web", "1", after=1) is None
        assert await add(store, "web", "1", after=0) is not None
        assert await add(store, "web", "2", after=0) is None
        assert await add(store, "web", "2", after=1) is not None
        assert len(await store.versions("web")) == 2

    async def test_of_several_that_follow_the_same_version_one_is_stored(
        self, open_store: OpenStore[EnvironmentStore]
    ) -> None:
        async with open_store(TENANT) as store, open_store(TENANT) as other:
            await add(store, "web", "1")
            racing = [add(each, "web", str(number), after=1) for number, each in enumerate((store, other) * 4)]
            stored = [each for each in await asyncio.gather(*racing) if each is not None]
            assert len(stored) == 1

    async def test_numbers_are_not_used_again_after_a_removal(self, store: EnvironmentStore) -> None:
        await add(store, "web", "1")
        await add(store, "web", "2")
        assert await store.remove("web")
        assert not await store.remove("web")
        assert await store.get("web") is None
        assert await store.get("web", 1) is None
        assert await store.versions("web") == []
        assert await store.latest() == []
        again = await add(store, "web", "1", after=0)
        assert again is not None
        assert again.version == 3
        assert await store.latest() == [again]

    async def test_a_file_is_allowed_at_one_place_until_that_is_taken_back(self, store: EnvironmentStore) -> None:
        assert not await store.is_allowed("/own", "d")
        await store.allow("/own", "d", by="somebody", now=5)
        await store.allow("/own", "d", by="somebody else", now=6)
        assert await store.is_allowed("/own", "d")
        assert not await store.is_allowed("/own", "e")
        assert not await store.is_allowed("/other", "d")
        assert not await store.disallow("/other")
        assert await store.disallow("/own")
        assert not await store.disallow("/own")
        assert not await store.is_allowed("/own", "d")

    async def test_a_new_consent_replaces_the_older_one_of_its_place(self, store: EnvironmentStore) -> None:
        await store.allow("/own", "wide", by="somebody", now=5)
        await store.allow("/other", "wide", by="somebody", now=5)
        await store.allow("/own", "narrow", by="somebody", now=6)
        assert await store.is_allowed("/own", "narrow")
        assert not await store.is_allowed("/own", "wide")
        assert await store.is_allowed("/other", "wide")

    async def test_they_survive_a_restart(self, open_store: OpenStore[EnvironmentStore]) -> None:
        async with open_store(TENANT) as store:
            made = await add(store, "web", "1")
            await store.allow("/own", "d", by="somebody", now=5)
        async with open_store(TENANT) as store:
            assert await store.latest() == [made]
            assert await store.is_allowed("/own", "d")

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[EnvironmentStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await add(store, "web", "1")
            await store.allow("/own", "d", by="somebody", now=5)
            assert await other.latest() == []
            assert await other.get("web") is None
            assert not await other.is_allowed("/own", "d")
            assert not await other.remove("web")
            theirs = await add(other, "web", "2", after=0)
            assert theirs is not None
            assert theirs.version == 1
