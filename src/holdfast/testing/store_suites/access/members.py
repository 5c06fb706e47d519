"""The contract of a store of members as tests, with that of their keys."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from holdfast.api.access.tenants import TenantMember, TenantRole
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore
from holdfast.threads.access.credentials import ApiKey, KeyStore, digest_key
from holdfast.threads.access.members import MemberStore

Stores = tuple[MemberStore, KeyStore]


@pytest.mark.anyio
class MemberSuite:
    """Subclass it and define an `open_store` fixture, which opens the members and the keys of a tenant."""

    @pytest.fixture
    async def stores(self, open_store: OpenStore[Stores]) -> AsyncIterator[Stores]:
        async with open_store(TENANT) as stores:
            yield stores

    async def test_a_member_keeps_when_they_were_added(self, stores: Stores) -> None:
        members, _ = stores
        assert await members.put("lee", TenantRole.MEMBER, 5) == TenantMember(
            name="lee", role=TenantRole.MEMBER, created_at=5
        )
        assert await members.put("lee", TenantRole.OWNER, 9) == TenantMember(
            name="lee", role=TenantRole.OWNER, created_at=5
        )
        await members.put("kim", TenantRole.VIEWER, 7)
        assert [each.name for each in await members.list()] == ["kim", "lee"]
        assert await members.find("nobody") is None

    async def test_a_key_has_at_most_the_role_of_its_member(self, stores: Stores) -> None:
        members, keys = stores
        await members.put("lee", TenantRole.MEMBER, 5)
        await keys.add_key(ApiKey("k-1", "all", 6, role=TenantRole.OWNER, member="lee"), digest_key("one"))
        await keys.add_key(ApiKey("k-2", "some", 6, role=TenantRole.VIEWER, member="lee"), digest_key("two"))
        for role, expected in (
            (TenantRole.MEMBER, [TenantRole.MEMBER, TenantRole.VIEWER]),
            (TenantRole.OWNER, [TenantRole.OWNER, TenantRole.VIEWER]),
        ):
            await members.put("lee", role, 5)
            assert [each.role for each in await keys.list_keys()] == expected

    async def test_the_keys_of_a_removed_member_are_revoked_for_good(self, stores: Stores) -> None:
        members, keys = stores
        await members.put("lee", TenantRole.OWNER, 5)
        await keys.add_key(ApiKey("k-1", "laptop", 6, member="lee"), digest_key("one"))
        await keys.add_key(ApiKey("k-2", "service", 6), digest_key("two"))
        assert await members.remove("lee", 7)
        assert not await members.remove("lee", 8)
        assert [each.revoked_at for each in await keys.list_keys()] == [7, None]
        await members.put("lee", TenantRole.OWNER, 9)
        assert (key := await keys.get_key("k-1")) is not None
        assert key.revoked_at == 7
        assert [each.revoked_at for each in await keys.list_keys()] == [7, None]

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[Stores]) -> None:
        async with open_store(TENANT) as (members, _):
            await members.put("lee", TenantRole.OWNER, 5)
        async with open_store(OTHER_TENANT) as (others, keys):
            assert await others.list() == []
            assert await others.find("lee") is None
            assert not await others.remove("lee", 6)
            await keys.add_key(ApiKey("k-9", "theirs", 6, member="lee"), digest_key("nine"))
            assert [each.revoked_at for each in await keys.list_keys()] == [6], "a member of another tenant"
