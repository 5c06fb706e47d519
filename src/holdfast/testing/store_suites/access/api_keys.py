"""The contract of an API key store as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore
from holdfast.threads.access.credentials import ApiKey, KeyStore, digest_key

LAPTOP = ApiKey("k-1", "laptop ü", 1_800_000_000_000)
PHONE = ApiKey("k-2", "phone", 1_800_000_000_001)


@pytest.mark.anyio
class ApiKeySuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[KeyStore]) -> AsyncIterator[KeyStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_key_is_found_by_its_digest_alone(self, store: KeyStore) -> None:
        await store.add_key(LAPTOP, digest_key("one"))
        await store.add_key(PHONE, digest_key("two"))
        assert await store.find_key(digest_key("one")) == LAPTOP
        assert await store.find_key(digest_key("two")) == PHONE
        for digest in (digest_key("three"), b"", digest_key("one")[:-1], b"k-1"):
            assert await store.find_key(digest) is None

    async def test_a_key_is_got_by_its_id(self, store: KeyStore) -> None:
        await store.add_key(LAPTOP, digest_key("one"))
        await store.add_key(PHONE, digest_key("two"))
        await store.revoke_key("k-2", 77)
        assert await store.get_key("k-1") == LAPTOP
        assert await store.get_key("k-2") == replace(PHONE, revoked_at=77)
        assert await store.get_key("k-9") is None

    async def test_keys_are_listed_with_the_oldest_first(self, store: KeyStore) -> None:
        assert await store.list_keys() == []
        await store.add_key(PHONE, digest_key("two"))
        await store.add_key(LAPTOP, digest_key("one"))
        assert await store.list_keys() == [LAPTOP, PHONE]

    async def test_a_revoked_key_is_still_found_and_listed(self, store: KeyStore) -> None:
        await store.add_key(LAPTOP, digest_key("one"))
        await store.add_key(PHONE, digest_key("two"))
        assert await store.revoke_key("k-1", 77)
        revoked = replace(LAPTOP, revoked_at=77)
        assert await store.find_key(digest_key("one")) == revoked
        assert await store.list_keys() == [revoked, PHONE]

    async def test_a_key_is_revoked_once(self, store: KeyStore) -> None:
        await store.add_key(LAPTOP, digest_key("one"))
        assert not await store.revoke_key("k-9", 77)
        assert await store.revoke_key("k-1", 77)
        assert not await store.revoke_key("k-1", 99)
        assert await store.list_keys() == [replace(LAPTOP, revoked_at=77)]

    async def test_keys_survive_a_restart(self, open_store: OpenStore[KeyStore]) -> None:
        async with open_store(TENANT) as store:
            await store.add_key(LAPTOP, digest_key("one"))
            await store.add_key(PHONE, digest_key("two"))
            await store.revoke_key("k-2", 77)
        async with open_store(TENANT) as store:
            assert await store.find_key(digest_key("one")) == LAPTOP
            assert await store.list_keys() == [LAPTOP, replace(PHONE, revoked_at=77)]

    async def test_a_key_is_good_for_its_own_tenant(self, open_store: OpenStore[KeyStore]) -> None:
        async with open_store(TENANT) as store:
            await store.add_key(LAPTOP, digest_key("one"))
        async with open_store(OTHER_TENANT) as store:
            assert await store.find_key(digest_key("one")) is None
            assert await store.list_keys() == []
            assert not await store.revoke_key("k-1", 77)
        async with open_store(TENANT) as store:
            assert await store.find_key(digest_key("one")) == LAPTOP
