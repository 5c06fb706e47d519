"""The contract of a store of shares as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.api.access.shares import ShareRecord
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore
from holdfast.threads.access.credentials import digest_key
from holdfast.threads.access.shares import ShareStore

SHARE = ShareRecord(id="h-1", thread="t-1", created_by="lee", created_at=10, expires_at=20)


@pytest.mark.anyio
class ShareSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[ShareStore]) -> AsyncIterator[ShareStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_share_is_found_until_it_is_removed(self, store: ShareStore) -> None:
        await store.add(SHARE, digest_key("one"), 7)
        await store.add(replace(SHARE, id="h-2", thread="t-2", expires_at=21), digest_key("two"), 8)
        assert await store.find(digest_key("one")) == (SHARE, 7)
        assert await store.list("t-1") == [SHARE]
        assert not await store.remove("t-2", "h-1"), "of another thread"
        assert await store.remove("t-1", "h-1")
        assert await store.find(digest_key("one")) is None
        assert await store.remove_expired(20) == 0
        assert await store.remove_expired(21) == 1
        assert await store.list("t-2") == []

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[ShareStore]) -> None:
        async with open_store(TENANT) as store:
            await store.add(SHARE, digest_key("one"), 7)
        async with open_store(OTHER_TENANT) as other:
            assert await other.find(digest_key("one")) is None
            assert await other.list("t-1") == []
            assert not await other.remove("t-1", "h-1")
            assert await other.remove_expired(99) == 0
