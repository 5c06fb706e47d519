"""The contract of the leases of a store of boxes as tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from holdfast.boxes.rows import BoxRows
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore


@pytest.mark.anyio
class BoxLeaseSuite:
    """Subclass it, and give it an `open_store` fixture. Rows and leases are one store: its methods name the tenant."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[BoxRows]) -> AsyncIterator[BoxRows]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_lease_has_one_holder_until_it_is_released_or_expires(self, store: BoxRows) -> None:
        async def take(holder: str, now: int) -> bool:
            return await store.take(TENANT, "x", holder, now, 10)

        assert await take("a", 0)
        assert not await take("b", 9)
        assert await take("a", 5)
        assert not await take("b", 14)
        assert await store.renew(TENANT, ["x", "y"], "a", 14, 10) == 1
        assert not await take("b", 23)
        assert await store.held(TENANT, "", 23) == {"x"}
        assert await store.held(TENANT, "", 24) == set()
        assert await take("b", 24)
        await store.release(TENANT, "x", "a")
        assert await store.renew(TENANT, ["x"], "a", 24, 10) == 0
        assert not await take("a", 25)
        await store.release(TENANT, "x", "b")
        assert await take("a", 25)

    async def test_only_the_leases_that_are_named_are_renewed(self, store: BoxRows) -> None:
        for name in ("x", "y", "z"):
            assert await store.take(TENANT, name, "a", 0, 10, frees_space=True)
        assert await store.renew(TENANT, ["x", "y"], "a", 9, 10) == 2
        assert await store.renew(TENANT, [], "a", 9, 10) == 0
        assert await store.held(TENANT, "", 15) == {"x", "y"}

    async def test_leases_are_found_by_the_beginning_of_their_names(self, store: BoxRows) -> None:
        for name in ("box_1", "box_2", "boxes", "BOX_3", "b%x_4"):
            await store.take(TENANT, name, "a", 0, 10)
        assert await store.held(TENANT, "box_", 5) == {"box_1", "box_2"}
        assert await store.held(TENANT, "b%", 5) == {"b%x_4"}
        assert await store.held(TENANT, "none", 5) == set()

    async def test_all_leases_are_released_at_once(self, store: BoxRows) -> None:
        await store.take(TENANT, "x", "a", 0, 10)
        await store.take(OTHER_TENANT, "x", "b", 0, 10)
        await store.release_all()
        assert await store.held(TENANT, "", 5) | await store.held(OTHER_TENANT, "", 5) == set()
        assert await store.take(TENANT, "x", "c", 5, 10)

    async def test_only_one_of_many_gets_a_lease(self, open_store: OpenStore[BoxRows]) -> None:
        async with open_store(TENANT) as one, open_store(TENANT) as two:
            for name in ("x", "y", "z"):
                taken = await asyncio.gather(
                    *(each.take(TENANT, name, f"h{number}", 0, 10) for number, each in enumerate((one, two) * 10))
                )
                assert sum(taken) == 1
                (holder,) = (number for number, has in enumerate(taken) if has)
                assert await two.take(TENANT, name, f"h{holder}", 1, 10)

    async def test_tenants_have_leases_of_their_own(self, store: BoxRows) -> None:
        assert await store.take(TENANT, "x", "a", 0, 10)
        assert await store.held(OTHER_TENANT, "", 5) == set()
        assert await store.take(OTHER_TENANT, "x", "b", 0, 10)
        assert await store.renew(OTHER_TENANT, ["x"], "a", 5, 10) == 0
        await store.release(OTHER_TENANT, "x", "a")
        await store.release(OTHER_TENANT, "x", "b")
        assert await store.held(TENANT, "", 5) == {"x"}
