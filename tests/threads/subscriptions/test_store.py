"""The contract of a store of subscriptions, kept by the one on disk and the one in memory alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.storage.sqlite.subscriptions import SqliteSubscriptions
from holdfast.threads.subscriptions.memory import MemorySubscriptions
from holdfast.threads.subscriptions.records import BEFORE_FIRST, Kind, Link, Subscription, SubscriptionConfig, Wake
from holdfast.threads.subscriptions.store import SubscriptionStore

pytestmark = pytest.mark.anyio
CONFIG = SubscriptionConfig(Kind.WEBHOOK, "a/*", ("x", "y"), "https://hooks.example.com/", None, 30_000, "é")


@pytest.fixture(params=["sqlite", "memory"])
async def subscriptions(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SubscriptionStore]:
    if request.param == "memory":
        yield MemorySubscriptions()
        return
    store = await SqliteStreams.open(tmp_path / "holdfast.db")
    yield SqliteSubscriptions(store)
    await store.close()


async def test_what_was_saved_is_loaded(subscriptions: SubscriptionStore) -> None:
    first = Subscription("s", CONFIG, 5)
    await subscriptions.save(first, {"x": Link(0, explicit=True), "a/1": Link(7, glob=True)})
    woken = Subscription("s", CONFIG, 5, generation=1, wake=Wake("w", "x", {"x": 3}, holder="one", lease_until=9))
    await subscriptions.save(woken, {"x": None, "a/2": Link(BEFORE_FIRST, glob=True, explicit=True)})
    await subscriptions.save(Subscription("t", CONFIG, 6), {})
    loaded = await subscriptions.load_all()
    assert loaded == [
        (woken, {"a/1": Link(7, glob=True), "a/2": Link(-1, explicit=True, glob=True)}),
        (Subscription("t", CONFIG, 6), {}),
    ]


async def test_a_deleted_one_leaves_nothing_to_a_later_one_of_its_id(subscriptions: SubscriptionStore) -> None:
    await subscriptions.save(Subscription("s", CONFIG, 5), {"x": Link(9, explicit=True)})
    await subscriptions.delete("s")
    await subscriptions.delete("s")
    assert await subscriptions.load_all() == []
    await subscriptions.save(Subscription("s", CONFIG, 8), {})
    assert await subscriptions.load_all() == [(Subscription("s", CONFIG, 8), {})]


async def test_tenants_do_not_see_each_other(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "holdfast.db")
    ours, theirs = SqliteSubscriptions(store), SqliteSubscriptions(store, tenant="other")
    await ours.save(Subscription("s", CONFIG, 5), {"x": Link(9, explicit=True)})
    await theirs.delete("s")
    assert await theirs.load_all() == []
    assert len(await ours.load_all()) == 1
    await store.close()
