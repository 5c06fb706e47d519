"""A real server with real local boxes, and the real Daytona SDK, unmodified."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from daytona import AsyncDaytona, AsyncSandbox, Daytona, DaytonaConfig, Sandbox
from tests.providers.local.rootfs import busybox

from holdfast.testing.server import ServerProcess

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            # The SDK leaves sockets to the garbage collector, which may come at any time.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


def config_of(server: ServerProcess, key: str | None = None) -> DaytonaConfig:
    return DaytonaConfig(
        api_key=key or server.api_key or "none", api_url=f"{server.url}/compat/daytona", target="local"
    )


@pytest.fixture(scope="session")
def daytona_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its boxes outlive it, so they are deleted in the end."""
    home = tmp_path_factory.mktemp("daytona") / "home"
    with ServerProcess(home, daytona=True) as server:
        yield server
        headers = {"Authorization": f"Bearer {server.api_key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as api:
            for box in api.get("/v1/boxes", params={"limit": 200}).json()["boxes"]:
                assert api.delete(f"/v1/boxes/{box['id']}").status_code == 200


@contextlib.contextmanager
def client_of(server: ServerProcess, key: str | None = None) -> Iterator[Daytona]:
    """A client whose connections are closed in the end. The SDK leaves them to the garbage collector."""
    client = Daytona(config_of(server, key))
    try:
        yield client
    finally:
        if client._event_dispatcher is not None:
            # Its thread may connect just now: engineio is connected a moment before it has the thread that it joins.
            # The socket is closed by then, and that thread ends at once.
            with contextlib.suppress(AttributeError):
                client._event_dispatcher.disconnect()
        client._http_client.close()
        for each in (client._api_client, client._toolbox_api_client):
            each.rest_client.pool_manager.clear()
        _collect()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """The SDK drops sockets open. They are collected here, and not in a later test, which would fail for them."""
    yield
    _collect()


def _collect() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def daytona(daytona_server: ServerProcess) -> Iterator[Daytona]:
    with client_of(daytona_server) as client:
        yield client


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="session")
def tiny_image(daytona_server: ServerProcess) -> str:
    """An image with nothing but busybox, that is on this machine."""
    headers = {"Authorization": f"Bearer {daytona_server.api_key}"}
    answer = httpx.post(
        f"{daytona_server.url}/v1/images/import",
        params={"name": "tiny:1"},
        content=busybox().done(),
        headers=headers,
        trust_env=False,
        timeout=60,
    )
    assert answer.status_code == 201, answer.text
    return "tiny:1"
