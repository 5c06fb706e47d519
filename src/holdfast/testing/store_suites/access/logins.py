"""The contract of a store of logins as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.api.access.tenants import TenantRole
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore
from holdfast.threads.access.credentials import ApiKey, KeyStore, digest_key
from holdfast.threads.access.logins import Login, LoginStore
from holdfast.threads.access.members import MemberStore

LoginStores = tuple[LoginStore, MemberStore, KeyStore]
PHONE = Login("l-1", "lee", TenantRole.OWNER, "link", 10, 20)


@pytest.mark.anyio
class LoginSuite:
    """Subclass it and define an `open_store` fixture, which opens the logins, members and keys of a tenant."""

    @pytest.fixture
    async def stores(self, open_store: OpenStore[LoginStores]) -> AsyncIterator[LoginStores]:
        async with open_store(TENANT) as stores:
            yield stores

    async def test_a_login_is_found_by_its_digest_until_it_is_removed(self, stores: LoginStores) -> None:
        logins, _, _ = stores
        await logins.add(PHONE, digest_key("one"))
        assert await logins.find(digest_key("one")) == PHONE
        assert await logins.find(digest_key("two")) is None
        assert await logins.list() == [PHONE]
        assert await logins.remove("l-1")
        assert not await logins.remove("l-1")
        assert await logins.find(digest_key("one")) is None

    async def test_expired_logins_are_removed(self, stores: LoginStores) -> None:
        logins, _, _ = stores
        await logins.add(PHONE, digest_key("one"))
        await logins.add(replace(PHONE, id="l-2", expires_at=21), digest_key("two"))
        assert await logins.remove_expired(20) == 1
        assert [each.id for each in await logins.list()] == ["l-2"]

    async def test_a_login_ends_with_its_key(self, stores: LoginStores) -> None:
        logins, _, keys = stores
        await keys.add_key(ApiKey("k-1", "laptop", 5), digest_key("key"))
        await logins.add(replace(PHONE, key="k-1"), digest_key("one"))
        assert await logins.find(digest_key("one")) is not None
        await keys.revoke_key("k-1", 12)
        assert await logins.find(digest_key("one")) is None
        assert await logins.list() == []

    async def test_a_login_has_at_most_the_role_of_its_member_and_ends_with_them(self, stores: LoginStores) -> None:
        logins, members, _ = stores
        await members.put("lee", TenantRole.VIEWER, 5)
        await logins.add(replace(PHONE, member="lee"), digest_key("one"))
        found = await logins.find(digest_key("one"))
        assert found is not None
        assert found.role is TenantRole.VIEWER
        await members.remove("lee", 12)
        assert await logins.find(digest_key("one")) is None
        await members.put("lee", TenantRole.OWNER, 13)
        assert await logins.find(digest_key("one")) is None, "somebody else of the same name"

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[LoginStores]) -> None:
        async with open_store(TENANT) as (logins, _, _):
            await logins.add(PHONE, digest_key("one"))
        async with open_store(OTHER_TENANT) as (others, _, _):
            assert await others.find(digest_key("one")) is None
            assert await others.list() == []
            assert not await others.remove("l-1")
            assert await others.remove_expired(99) == 0
