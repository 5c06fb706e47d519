"""The contract of a store of the gateway's cookies as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.gateway.cookies import CookieRow, CookieStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

ROW = CookieRow("a" * 64, "t-1", "t-1", 0, "ada", "b" * 64, 1000)


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

    async def test_a_cookie_is_removed_once(self, store: CookieStore) -> None:
        await store.add(ROW)
        assert await store.remove(ROW.digest)
        assert not await store.remove(ROW.digest)
        assert await store.find(ROW.digest) is None

    async def test_cookies_of_a_session_or_a_token_are_removed_together(self, store: CookieStore) -> None:
        rows = [
            ROW,
            replace(ROW, digest="1" * 64, place="app--t-1"),
            replace(ROW, digest="2" * 64, via="d" * 64),
            replace(ROW, digest="3" * 64, session="t-2", place="t-2"),
        ]
        for row in rows:
            await store.add(row)
        assert await store.remove_via("t-1", ROW.via) == 2
        assert [await store.find(row.digest) is not None for row in rows] == [False, False, True, True]
        assert await store.remove_session("t-1") == 1
        assert [await store.find(row.digest) is not None for row in rows] == [False, False, False, True]

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
            assert not await other.remove(ROW.digest)
            assert (await other.remove_session("t-1"), await other.remove_expired(10**6)) == (0, 0)
            assert await store.find(ROW.digest) == ROW
