"""Clients of real servers, directly and through a network that fails on order."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.client.proxy import Proxy

from holdfast import Client
from holdfast.client import Thread
from holdfast.testing.server import ServerProcess


@pytest.fixture
async def client(server: ServerProcess) -> AsyncIterator[Client]:
    async with Client(server.url, api_key=server.api_key) as client:
        yield client


@pytest.fixture
async def thread(client: Client) -> Thread:
    return await client.threads.create()


@pytest.fixture
async def proxy(server: ServerProcess) -> AsyncIterator[Proxy]:
    async with Proxy(server.address) as proxy:
        yield proxy


@pytest.fixture
async def shaky(proxy: Proxy, server: ServerProcess) -> AsyncIterator[Client]:
    """A client behind the proxy."""
    async with Client(proxy.url, api_key=server.api_key) as client:
        yield client
