"""The contract of a subscription store as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore
from holdfast.threads.subscriptions.records import BEFORE_FIRST, Kind, Link, Subscription, SubscriptionConfig, Wake
from holdfast.threads.subscriptions.store import Stored, SubscriptionStore

CONFIG: Final = SubscriptionConfig(Kind.WEBHOOK, "a/*", ("x", "y"), "https://hooks.example.com/", None, 30_000, "é")


async def load(store: SubscriptionStore) -> dict[str, Stored]:
    """Returns all subscriptions by id. The contract promises no order."""
    return {stored[0].id: stored for stored in await store.load_all()}


@pytest.mark.anyio
class SubscriptionSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[SubscriptionStore]) -> AsyncIterator[SubscriptionStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_what_was_saved_is_loaded(self, store: SubscriptionStore) -> None:
        assert await store.load_all() == []
        first = Subscription("s", CONFIG, 5)
        await store.save(first, {"x": Link(0, explicit=True), "a/1": Link(7, glob=True)})
        woken = Subscription(
            "s",
            CONFIG,
            5,
            generation=1,
            wake=Wake("w", "x", {"x": 3}, announced=True, holder="one", lease_until=9),
            attempts=2,
            next_attempt_at=11,
            last_error="no answer",
        )
        await store.save(woken, {"x": None, "a/2": Link(BEFORE_FIRST, glob=True, explicit=True)})
        other = Subscription("t", SubscriptionConfig(Kind.PULL_WAKE, None, ("x",), None, "wakes", 1000, None), 6)
        await store.save(other, {})
        assert await load(store) == {
            "s": (woken, {"a/1": Link(7, glob=True), "a/2": Link(-1, explicit=True, glob=True)}),
            "t": (other, {}),
        }

    async def test_a_link_belongs_to_one_subscription(self, store: SubscriptionStore) -> None:
        one, two = Subscription("s", CONFIG, 5), Subscription("t", CONFIG, 6)
        await store.save(one, {"x": Link(1)})
        await store.save(two, {"x": Link(2)})
        await store.save(one, {"x": Link(3)})
        assert await load(store) == {"s": (one, {"x": Link(3)}), "t": (two, {"x": Link(2)})}
        await store.save(one, {"x": None})
        await store.delete("s")
        assert await load(store) == {"t": (two, {"x": Link(2)})}

    async def test_a_deleted_one_leaves_nothing_to_a_later_one_of_its_id(self, store: SubscriptionStore) -> None:
        await store.save(Subscription("s", CONFIG, 5), {"x": Link(9, explicit=True)})
        await store.delete("s")
        await store.delete("s")
        assert await store.load_all() == []
        await store.save(Subscription("s", CONFIG, 8), {})
        assert await load(store) == {"s": (Subscription("s", CONFIG, 8), {})}

    async def test_what_was_loaded_is_the_callers_to_change(self, store: SubscriptionStore) -> None:
        await store.save(Subscription("s", CONFIG, 5), {"x": Link(1)})
        (await load(store))["s"][1]["y"] = Link(2)
        assert (await load(store))["s"][1] == {"x": Link(1)}

    async def test_subscriptions_survive_a_restart(self, open_store: OpenStore[SubscriptionStore]) -> None:
        async with open_store(TENANT) as store:
            await store.save(Subscription("s", CONFIG, 5), {"x": Link(9, explicit=True)})
            await store.save(Subscription("t", CONFIG, 6), {"x": Link(1)})
            await store.delete("t")
        async with open_store(TENANT) as store:
            assert await load(store) == {"s": (Subscription("s", CONFIG, 5), {"x": Link(9, explicit=True)})}

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[SubscriptionStore]) -> None:
        mine, theirs = Subscription("s", CONFIG, 5), Subscription("s", CONFIG, 6)
        async with open_store(TENANT) as store:
            await store.save(mine, {"x": Link(1)})
        async with open_store(OTHER_TENANT) as store:
            assert await store.load_all() == []
            await store.save(theirs, {"x": Link(2), "y": Link(3)})
        async with open_store(TENANT) as store:
            assert await load(store) == {"s": (mine, {"x": Link(1)})}
        async with open_store(OTHER_TENANT) as store:
            await store.save(theirs, {"x": None})
            await store.delete("s")
        async with open_store(TENANT) as store:
            assert await load(store) == {"s": (mine, {"x": Link(1)})}
