"""Who may do what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jwt
import pytest

from holdfast.api.access.tenants import TenantRole
from holdfast.api.errors import Forbidden, InvalidRequest, Refused, Unauthorized
from holdfast.storage.sqlite.access.api_keys import SqliteApiKeys
from holdfast.storage.sqlite.access.members import SqliteMembers
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.testing.clock import ManualClock
from holdfast.threads.access.credentials import Access, ApiKey, Grant, Issuer, Scope, derive

pytestmark = pytest.mark.anyio

SECRET = b"s" * 32


class NoKeys:
    async def find_key(self, digest: bytes) -> None:
        return None


def access(clock: ManualClock, secret: bytes = SECRET) -> Access:
    return Access(NoKeys(), secret, session_key="hf_session", clock=clock.now)  # type: ignore[arg-type]


@pytest.mark.parametrize("credential", [None, "", "hf_unknown", "nonsense", "a.b.c"])
async def test_who_is_not_known_is_refused(credential: str | None) -> None:
    with pytest.raises(Unauthorized):
        await access(ManualClock()).grant(credential)


async def test_the_key_of_this_server_opens_everything() -> None:
    assert await access(ManualClock()).grant("hf_session") == Grant("default")


async def test_a_token_is_for_one_thread_and_one_scope() -> None:
    clock = ManualClock()
    token = access(clock).issue("t-1", Scope.READ, 60).token
    grant = await access(clock).grant(token)
    grant.check_thread("t-1", Scope.READ)
    grant.check_stream("threads/t-1", "GET")
    refusals: list[Callable[[], None]] = [
        lambda: grant.check_thread("t-1", Scope.WRITE),
        lambda: grant.check_thread("t-2", Scope.READ),
        lambda: grant.check_stream("threads/t-1", "POST"),
        lambda: grant.check_stream("threads/t-2", "GET"),
        lambda: grant.check_stream("other", "GET"),
        grant.check_administer,
    ]
    for refused in refusals:
        with pytest.raises(Forbidden):
            refused()


async def test_a_write_token_reads_too_but_neither_creates_nor_deletes() -> None:
    clock = ManualClock()
    grant = await access(clock).grant(access(clock).issue("t-1", Scope.WRITE, 60).token)
    grant.check_stream("threads/t-1", "GET")
    grant.check_stream("threads/t-1", "POST")
    for method in ("PUT", "DELETE"):
        with pytest.raises(Forbidden):
            grant.check_stream("threads/t-1", method)


async def test_a_token_expires_also_where_it_was_seen_before() -> None:
    clock = ManualClock()
    credentials = access(clock)
    token = credentials.issue("t-1", Scope.READ, 60).token
    await credentials.grant(token)
    clock.advance(60_000)
    with pytest.raises(Unauthorized, match="expired"):
        await credentials.grant(token)


async def test_a_token_of_another_home_is_refused() -> None:
    clock = ManualClock()
    token = access(clock, b"o" * 32).issue("t-1", Scope.READ, 60).token
    with pytest.raises(Unauthorized):
        await access(clock).grant(token)


@pytest.mark.parametrize("algorithm", ["none", "HS512"])
async def test_a_token_of_another_algorithm_is_refused(algorithm: str) -> None:
    clock = ManualClock()
    claims = {"iss": "holdfast", "sub": "t-1", "ten": "default", "scope": "write", "iat": 1, "exp": 2**40, "first": 1}
    key = derive(SECRET, "thread tokens") * 2 if algorithm != "none" else ""
    with pytest.raises(Unauthorized):
        await access(clock).grant(jwt.encode(claims, key, algorithm))


async def test_renewal_keeps_thread_scope_and_length_and_ends_after_a_week() -> None:
    clock = ManualClock()
    credentials = access(clock)
    issued = credentials.issue("t-1", Scope.WRITE, 7200)
    for _ in range(7 * 24):
        clock.advance(3_600_000)
        issued = await credentials.renew(issued.token)
        assert (issued.thread, issued.scope) == ("t-1", Scope.WRITE)
        assert issued.expires_at == clock.now() // 1000 * 1000 + 7_200_000
    clock.advance(3_600_000)
    with pytest.raises(Forbidden, match="week"):
        await credentials.renew(issued.token)


@pytest.mark.parametrize("credential", ["hf_session", None])
async def test_only_tokens_are_renewed(credential: str | None) -> None:
    with pytest.raises((InvalidRequest, Unauthorized)):
        await access(ManualClock()).renew(credential)


@pytest.mark.parametrize("seconds", [0, -1, 10**9])
def test_a_token_cannot_live_for_ever(seconds: int) -> None:
    with pytest.raises(Refused):
        access(ManualClock()).issue("t-1", Scope.READ, seconds)


async def test_keys_are_kept_as_digests_and_can_be_revoked(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    clock = ManualClock()
    credentials = Access(SqliteApiKeys(store), SECRET, clock=clock.now)
    key, secret = await credentials.create_key("laptop")
    assert await credentials.grant(secret) == Grant("default", user="laptop", key=key.id)
    assert secret.encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert await credentials.revoke_key(key.id)
    with pytest.raises(Unauthorized, match="revoked"):
        await credentials.grant(secret)
    assert not await credentials.revoke_key(key.id)
    assert [each.revoked_at for each in await credentials.list_keys()] == [clock.now()]
    await store.close()


async def test_a_key_revoked_by_another_process_stops_working_within_a_second(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    clock = ManualClock()
    credentials, others = (Access(SqliteApiKeys(store), SECRET, clock=clock.now) for _ in range(2))
    key, secret = await credentials.create_key("laptop")
    await credentials.grant(secret)
    await others.revoke_key(key.id)
    clock.advance(1001)
    with pytest.raises(Unauthorized):
        await credentials.grant(secret)
    await store.close()


async def test_a_token_of_a_member_without_a_key_ends_with_the_member(tmp_path: Path) -> None:
    store = await SqliteStreams.open(tmp_path / "db")
    clock, members = ManualClock(), SqliteMembers(store)
    credentials = Access(SqliteApiKeys(store), SECRET, clock=clock.now, members=members)
    await members.put("kim", TenantRole.MEMBER, clock.now())
    token = credentials.issue("t-1", Scope.WRITE, 3600, issuer=Issuer(member="kim")).token
    assert (await credentials.grant(token)).scope is Scope.WRITE
    await members.remove("kim", clock.now())
    await credentials.review()
    with pytest.raises(Unauthorized, match="lost the right"):
        await credentials.grant(token)
    clock.advance(1000)
    await members.put("kim", TenantRole.OWNER, clock.now())  # the name is taken again, perhaps by somebody else
    with pytest.raises(Unauthorized, match="lost the right"):
        await credentials.grant(token)
    await store.close()


async def test_what_the_store_said_before_a_revocation_is_not_remembered() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()
    key = ApiKey("k-1", "laptop", 1)

    class SlowKeys:
        async def find_key(self, digest: bytes) -> ApiKey:
            found = key
            if not asked.is_set():
                asked.set()
                await go_on.wait()
            return found

    credentials = Access(SlowKeys(), SECRET, clock=ManualClock().now)  # type: ignore[arg-type]
    granting = asyncio.create_task(credentials.grant("hf_laptop"))
    await asked.wait()
    key = replace(key, revoked_at=2)
    await credentials.review()
    go_on.set()
    with pytest.raises(Unauthorized, match="revoked"):
        await granting


def link_of(key: str, thread: str = "t-1") -> str:
    """As the page sends it."""
    return f"hfl_{thread}.{key}"


async def test_a_link_reads_one_thread_until_it_ends() -> None:
    clock = ManualClock()
    issued = access(clock).issue_link("t-1", 60)
    grant = await access(clock).grant(link_of(issued.key))
    assert grant == Grant("default", "t-1", Scope.READ, role=TenantRole.VIEWER)
    clock.advance(60_000)
    with pytest.raises(Unauthorized, match="expired"):
        await access(clock).grant(link_of(issued.key))


async def test_a_link_that_was_changed_opens_nothing() -> None:
    clock = ManualClock()
    key = access(clock).issue_link("t-1", 60).key
    ends, _, mac = key.partition(".")
    later = f"{int(ends, 16) + 3600:x}.{mac}"
    others = [key[:-1], f"{key}=", f"{key}A", later, f"{ends}.", ".", "", f".{mac}", f"{ends.upper()}x.{mac}", "zz.zz"]
    for changed in [*(link_of(each) for each in others), link_of(key, "t-2"), link_of(key, ""), "hfl_", f"hfl_{key}"]:
        with pytest.raises(Unauthorized):
            await access(clock).grant(changed)
    with pytest.raises(Unauthorized):
        await access(clock, b"another" * 5).grant(link_of(key))
    with pytest.raises(InvalidRequest):
        await access(clock).renew(link_of(key))


@pytest.mark.parametrize("seconds", [0, -1, 25 * 3600])
def test_no_link_holds_for_longer_than_a_day(seconds: int) -> None:
    with pytest.raises(InvalidRequest):
        access(ManualClock()).issue_link("t-1", seconds)
