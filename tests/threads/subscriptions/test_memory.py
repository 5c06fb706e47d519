"""Subscriptions in memory keep the contract."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.testing.store_suites import SubscriptionSuite
from holdfast.testing.store_suites.opener import OpenStore
from holdfast.threads.subscriptions.memory import MemorySubscriptions
from holdfast.threads.subscriptions.store import SubscriptionStore


class TestMemorySubscriptions(SubscriptionSuite):
    @pytest.fixture
    def open_store(self) -> OpenStore[SubscriptionStore]:
        stores = defaultdict[str, SubscriptionStore](MemorySubscriptions)

        @asynccontextmanager
        async def open_store(tenant: str) -> AsyncIterator[SubscriptionStore]:
            yield stores[tenant]

        return open_store
