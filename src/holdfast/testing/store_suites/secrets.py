"""The contract of a root secret store as tests."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from holdfast.testing.store_suites.opener import TENANT, OpenStore
from holdfast.threads.access.credentials import SecretStore


@pytest.mark.anyio
class SecretSuite:
    """Subclass it and define an `open_store` fixture."""

    async def test_the_secret_is_made_once(self, open_store: OpenStore[SecretStore]) -> None:
        async with open_store(TENANT) as store:
            first = await store.root()
            assert len(first) == 32
            assert await store.root() == first
        async with open_store(TENANT) as store:
            assert await store.root() == first

    async def test_servers_that_make_it_at_once_get_the_same(self, open_store: OpenStore[SecretStore]) -> None:
        async with AsyncExitStack() as opened:
            stores = [await opened.enter_async_context(open_store(TENANT)) for _ in range(16)]
            made = set(await asyncio.gather(*(store.root() for store in stores)))
            assert made == {await stores[0].root()}
