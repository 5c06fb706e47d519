"""A real server with the Daytona API over real local boxes, and the provider that uses it through the vendor's SDK."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from tests.providers.daytona.faulty_proxy import FaultyProxy
from tests.stores import open_records

from holdfast.egress import EgressProxy
from holdfast.providers.daytona import Account, DaytonaProvider
from holdfast.testing.outside import Nowhere
from holdfast.testing.server import ServerProcess


@contextlib.contextmanager
def serving(home: Path) -> Iterator[ServerProcess]:
    """A server whose boxes are deleted in the end: they would outlive it."""
    with ServerProcess(home, daytona=True) as server:
        yield server
        headers = {"Authorization": f"Bearer {server.api_key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as api:
            for box in api.get("/v1/boxes", params={"limit": 200}).json()["boxes"]:
                api.delete(f"/v1/boxes/{box['id']}")


def account_of(server: ServerProcess, url: str | None = None) -> Account:
    return Account(server.api_key or "none", f"{url or server.url}/compat/daytona", "local")


@pytest.fixture(scope="module")
def daytona_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("daytona") / "home") as server:
        yield server


@pytest.fixture
async def proxy(daytona_server: ServerProcess) -> AsyncIterator[FaultyProxy]:
    async with FaultyProxy(daytona_server.url) as proxy:
        yield proxy


@pytest.fixture
async def provider(daytona_server: ServerProcess, proxy: FaultyProxy, tmp_path: Path) -> AsyncIterator[DaytonaProvider]:
    """Reaches Daytona through the proxy, which misbehaves when it is told to."""
    async with (
        open_records(tmp_path / "data.db") as records,
        EgressProxy(Nowhere(), Nowhere(), records) as egress,
        DaytonaProvider(tmp_path / "home", account_of(daytona_server, proxy.url), egress=egress) as provider,
    ):
        yield provider
        proxy.clear()
        for info in await provider.find():
            await provider.remove(info.id)
