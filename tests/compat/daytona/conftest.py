"""A real server with real local boxes, and the real Daytona SDK, unmodified."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
from daytona import AsyncDaytona, AsyncSandbox, Daytona, DaytonaConfig, Sandbox

from holdfast.testing.server import ServerProcess

NewSandbox = Callable[..., Sandbox]


def config_of(server: ServerProcess) -> DaytonaConfig:
    return DaytonaConfig(api_key=server.api_key or "none", api_url=f"{server.url}/compat/daytona", target="local")


@pytest.fixture(scope="session")
def daytona_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its boxes outlive it, so they are deleted in the end."""
    home = tmp_path_factory.mktemp("daytona") / "home"
    with ServerProcess(home, daytona=True) as server:
        yield server
        headers = {"Authorization": f"Bearer {server.api_key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False) as api:
            for box in api.get("/v1/boxes", params={"limit": 200}).json()["boxes"]:
                assert api.delete(f"/v1/boxes/{box['id']}").status_code == 200


@pytest.fixture(scope="session")
def daytona(daytona_server: ServerProcess) -> Daytona:
    return Daytona(config_of(daytona_server))


@pytest.fixture(scope="session")
def shared(daytona: Daytona) -> Sandbox:
    """A sandbox for the tests that only add to it."""
    return daytona.create()


@pytest.fixture
def sandbox(daytona: Daytona) -> Iterator[Sandbox]:
    """A sandbox of one test."""
    made = daytona.create()
    yield made
    if made.state != "destroyed":
        made.delete()


@pytest.fixture
def api(daytona_server: ServerProcess) -> Iterator[httpx.Client]:
    """Plain HTTP, for what no SDK would send."""
    with httpx.Client(
        base_url=f"{daytona_server.url}/compat/daytona",
        headers={"Authorization": f"Bearer {daytona_server.api_key}"},
        timeout=30,
        trust_env=False,
    ) as client:
        yield client


@pytest.fixture
async def async_daytona(daytona_server: ServerProcess) -> AsyncIterator[AsyncDaytona]:
    async with AsyncDaytona(config_of(daytona_server)) as client:
        yield client


@pytest.fixture
async def async_sandbox(async_daytona: AsyncDaytona) -> AsyncIterator[AsyncSandbox]:
    made = await async_daytona.create()
    yield made
    if made.state != "destroyed":
        await made.delete()
