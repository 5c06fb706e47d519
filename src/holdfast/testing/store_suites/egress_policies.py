"""The contract of an environment policy store as tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.egress.environment_policies import PolicyStore
from holdfast.testing.store_suites.opener import OTHER_TENANT, TENANT, OpenStore

LISTED: Final = NetworkPolicy(Network.ALLOW, ("a.example", "default"), bandwidth=4096)
OPEN: Final = NetworkPolicy(Network.OPEN)


@pytest.mark.anyio
class PolicySuite:
    """Subclass it and define an `open_store` fixture."""

    @pytest.fixture
    async def store(self, open_store: OpenStore[PolicyStore]) -> AsyncIterator[PolicyStore]:
        async with open_store(TENANT) as store:
            yield store

    async def test_a_policy_comes_back_as_it_was(self, store: PolicyStore) -> None:
        assert await store.load_all() == {}
        policies = {"web": LISTED, "open": OPEN, "none": NetworkPolicy()}
        for environment, policy in policies.items():
            await store.put(environment, policy, 5)
        assert await store.load_all() == policies

    async def test_an_environment_has_one_policy(self, store: PolicyStore) -> None:
        await store.put("web", LISTED, 5)
        await store.put("Web", LISTED, 5)
        await store.put("web", OPEN, 6)
        assert await store.load_all() == {"web": OPEN, "Web": LISTED}

    async def test_a_policy_is_removed_once(self, store: PolicyStore) -> None:
        await store.put("web", LISTED, 5)
        await store.put("other", OPEN, 5)
        assert await store.remove("web")
        assert not await store.remove("web")
        assert await store.load_all() == {"other": OPEN}

    async def test_what_was_acknowledged_is_there_for_another_server(self, open_store: OpenStore[PolicyStore]) -> None:
        async with open_store(TENANT) as store, open_store(TENANT) as other:
            await store.put("web", LISTED, 5)
            assert await other.load_all() == {"web": LISTED}
            assert await other.remove("web")
            assert await store.load_all() == {}

    async def test_policies_survive_a_restart(self, open_store: OpenStore[PolicyStore]) -> None:
        async with open_store(TENANT) as store:
            await store.put("web", LISTED, 5)
            await store.put("other", OPEN, 5)
            await store.remove("other")
        async with open_store(TENANT) as store:
            assert await store.load_all() == {"web": LISTED}

    async def test_tenants_do_not_see_each_other(self, open_store: OpenStore[PolicyStore]) -> None:
        async with open_store(TENANT) as store, open_store(OTHER_TENANT) as other:
            await store.put("web", LISTED, 5)
            assert await other.load_all() == {}
            await other.put("web", OPEN, 6)
            assert await other.remove("web")
            assert await store.load_all() == {"web": LISTED}
