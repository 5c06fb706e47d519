"""The contract of a store of the gateway's cookies as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.gateway.credentials.cookies import CookieRow, CookieStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

TOKEN = "b" * 64
ROW = CookieRow("a" * 64, "t-1", "t-1", "7.5/0", "ada", (TOKEN,), 1000)


@pytest.mark.anyio
class CookieSuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[CookieStore]) -> AsyncIterator[CookieStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_cookie_comes_back_as_it_was(self, store: CookieStore) -> None:
        assert await store.find(ROW.digest) is None
        await store.add(ROW)
        assert await store.find(ROW.digest) == ROW
        assert await store.find(ROW.digest[:-1] + "b") is None

    async def test_a_cookie_is_renewed_while_it_is_there(self, store: CookieStore) -> None:
        await store.add(ROW)
        assert await store.renew(ROW.digest, 2000)
        assert await store.find(ROW.digest) == replace(ROW, expires_at=2000)
        assert not await store.renew("c" * 64, 2000)

    async def test_a_cookie_is_removed_with_all_that_came_from_it(self, store: CookieStore) -> None:
        rows = [
            ROW,
            replace(ROW, digest="1" * 64, place="app--t-1", via=(TOKEN, ROW.digest, "e" * 64)),
            replace(ROW, digest="2" * 64),
            replace(ROW, digest="3" * 64, via=("d" * 64,)),
            replace(ROW, digest="4" * 64, session="t-2", place="t-2"),
        ]

        async def left() -> list[bool]:
            return [await store.find(row.digest) is not None for row in rows]

        for row in rows:
            await store.add(row)
        assert await store.find(rows[1].digest) == rows[1]
        assert await store.remove_tree("t-2", ROW.digest) == 0
        assert await store.remove_tree("t-1", "b") == 0
        assert await store.remove_tree("t-1", ROW.digest) == 2
        assert await left() == [False, False, True, True, True]
        assert await store.remove_tree("t-1", ROW.digest) == 0
        assert await store.remove_tree("t-1", TOKEN) == 1
        assert await left() == [False, False, False, True, True]
        assert await store.remove_session("t-1") == 1
        assert await left() == [False, False, False, False, True]

    async def test_expired_cookies_are_removed(self, store: CookieStore) -> None:
        late = replace(ROW, digest="1" * 64, expires_at=1001)
        await store.add(ROW)
        await store.add(late)
        assert await store.remove_expired(1000) == 1
        assert (await store.find(ROW.digest), await store.find(late.digest)) == (None, late)

    async def test_cookies_survive_a_restart(self, open_store: OpenStore[CookieStore]) -> None:
        async with open_store(TENANT) as store:
            await store.add(ROW)
        async with open_store(TENANT) as store:
            assert await store.find(ROW.digest) == ROW

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[CookieStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.add(ROW)
            assert await other.find(ROW.digest) is None
            assert not await other.renew(ROW.digest, 5)
            assert await other.remove_tree("t-1", ROW.digest) == 0
            assert (await other.remove_session("t-1"), await other.remove_expired(10**6)) == (0, 0)
            assert await store.find(ROW.digest) == ROW
