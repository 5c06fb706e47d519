"""Cookies: how long they are valid, where, and what ends them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.gateway.credentials.cookies import IDLE_SECONDS, CookieRow, Cookies
from holdfast.gateway.credentials.tokens import digest
from holdfast.storage.sqlite.access.gateway_cookies import SqliteCookies
from holdfast.storage.sqlite.database import Database

pytestmark = pytest.mark.anyio

IDLE_MS = IDLE_SECONDS * 1000
KEY = b"k" * 32


@dataclass
class Clock:
    now: int = 1_000_000

    def __call__(self) -> int:
        return self.now


async def test_a_cookie_is_random_and_only_its_digest_is_stored(tmp_path: Path) -> None:
    async with Database(tmp_path / "holdfast.db") as database:
        store = SqliteCookies(database)
        cookies = Cookies(store, Clock(), KEY)
        values = {await cookies.issue("t-1", "t-1", "a/0", "ada", ("via",)) for _ in range(20)}
        assert len(values) == 20
        for value in values:
            assert re.fullmatch(r"[0-9a-f]{64}", value)
            assert await store.find(value) is None
            assert await store.find(digest(value)) is not None


async def test_a_cookie_is_valid_at_its_place(tmp_path: Path) -> None:
    async with Database(tmp_path / "holdfast.db") as database:
        cookies = Cookies(SqliteCookies(database), Clock(), KEY)
        value = await cookies.issue("app--t-1", "t-1", "a/3", "ada", ("via",))
        found = await cookies.find(value, "app--t-1")
        assert found is not None
        assert (found.subject, found.epoch) == ("ada", "a/3")
        for place in ("t-1", "other--t-1", "t-2"):
            assert await cookies.find(value, place) is None
        for other in ("", "0" * 64, value.upper(), value + "0", value[:-1], "../" + value, digest(value)):
            assert await cookies.find(other, "app--t-1") is None


class CountingCookies(SqliteCookies):
    asked = 0

    async def find(self, digest: str) -> CookieRow | None:
        self.asked += 1
        return await super().find(digest)


async def test_the_store_is_not_asked_about_what_this_server_has_not_made(tmp_path: Path) -> None:
    async with Database(tmp_path / "holdfast.db") as database:
        store = CountingCookies(database)
        value = await Cookies(store, Clock(), KEY).issue("t-1", "t-1", "", "ada", ())
        cookies = Cookies(store, Clock(), KEY)
        altered = f"{int(value[0], 16) ^ 1:x}" + value[1:]
        for other in ("0" * 64, altered, value[:-1] + f"{int(value[-1], 16) ^ 1:x}", value[:32] + value[:32]):
            assert await cookies.find(other, "t-1") is None
        assert await cookies.find(value, "t-2") is None
        assert await Cookies(store, Clock(), b"other").find(value, "t-1") is None
        assert store.asked == 0
        assert await cookies.find(value, "t-1") is not None
        assert store.asked == 1


async def test_use_renews_a_cookie_and_idleness_ends_it(tmp_path: Path) -> None:
    clock = Clock()
    async with Database(tmp_path / "holdfast.db") as database:
        store = SqliteCookies(database)
        cookies = Cookies(store, clock, KEY)
        value = await cookies.issue("t-1", "t-1", "a/0", "ada", ("via",))
        for _ in range(5):
            clock.now += IDLE_MS - 1
            found = await cookies.find(value, "t-1")
            assert found is not None
            await cookies.use(found)
            # A server that starts now knows of that use.
            assert await Cookies(store, clock, KEY).find(value, "t-1") is not None
        clock.now += IDLE_MS
        assert await cookies.find(value, "t-1") is None
        assert await Cookies(store, clock, KEY).find(value, "t-1") is None
        await cookies.sweep()
        assert await store.find(digest(value)) is None


async def test_to_look_for_a_cookie_is_no_use_of_it(tmp_path: Path) -> None:
    """Otherwise one that is refused would be renewed, and outlive its revocation."""
    clock = Clock()
    async with Database(tmp_path / "holdfast.db") as database:
        cookies = Cookies(SqliteCookies(database), clock, KEY)
        value = await cookies.issue("t-1", "t-1", "a/0", "ada", ("via",))
        clock.now += IDLE_MS - 1
        assert await cookies.find(value, "t-1") is not None
        clock.now += 1
        assert await cookies.find(value, "t-1") is None


async def test_a_cookie_does_not_expire_while_a_connection_is_open_with_it(tmp_path: Path) -> None:
    clock = Clock()
    async with Database(tmp_path / "holdfast.db") as database:
        store = SqliteCookies(database)
        cookies = Cookies(store, clock, KEY)
        value = await cookies.issue("t-1", "t-1", "a/0", "ada", ("via",))
        row = await cookies.find(value, "t-1")
        assert row is not None
        with cookies.in_use(row):
            clock.now += 2 * IDLE_MS
            await cookies.sweep()
            assert await cookies.find(value, "t-1") is not None
            assert await Cookies(store, clock, KEY).find(value, "t-1") is not None
            clock.now += 2 * IDLE_MS
        clock.now += IDLE_MS - 1
        assert await cookies.find(value, "t-1") is not None
        clock.now += 1
        assert await cookies.find(value, "t-1") is None


async def test_a_cookie_is_removed_by_itself_by_its_token_or_with_its_session(tmp_path: Path) -> None:
    async with Database(tmp_path / "holdfast.db") as database:
        store = SqliteCookies(database)
        cookies = Cookies(store, Clock(), KEY)
        values = [await cookies.issue("t-1", "t-1", "a/0", "ada", (via,)) for via in ("a", "a", "b", "c")]

        async def valid() -> list[bool]:
            here = [await cookies.find(each, "t-1") is not None for each in values]
            assert here == [await Cookies(store, Clock(), KEY).find(each, "t-1") is not None for each in values]
            return here

        assert await cookies.remove_tree("t-2", digest(values[2])) == 0  # of another session
        assert await cookies.remove_tree("t-1", digest(values[2])) == 1
        assert await valid() == [True, True, False, True]
        assert await cookies.remove_tree("t-1", "a") == 2
        assert await valid() == [False, False, False, True]
        await cookies.remove_session("t-1")
        assert await valid() == [False, False, False, False]
