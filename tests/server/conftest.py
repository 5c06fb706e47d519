"""Servers with boxes: dummies, quick and everywhere alike, and real local ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import httpx
import pytest
from tests.server.box_providers import dummies

from holdfast.testing.server import ServerProcess


@pytest.fixture(scope="session")
def dummy_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("dummy") / "home"
    with ServerProcess(home, providers=dummies) as server:
        yield server


@pytest.fixture(scope="session")
def local_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its boxes outlive it, so they are deleted in the end."""
    home = tmp_path_factory.mktemp("local") / "home"
    with ServerProcess(home) as server:
        yield server
        with api_of(server) as api:
            for box in api.get("/v1/boxes", params={"limit": 200}).json()["boxes"]:
                assert api.delete(f"/v1/boxes/{box['id']}").status_code == 200


def api_of(server: ServerProcess) -> httpx.Client:
    headers = {} if server.api_key is None else {"Authorization": f"Bearer {server.api_key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False)


@pytest.fixture
def api(dummy_server: ServerProcess) -> Iterator[httpx.Client]:
    with api_of(dummy_server) as client:
        yield client


@pytest.fixture
def make_box(api: httpx.Client) -> Iterator[Callable[..., str]]:
    made = []

    def make(**fields: object) -> str:
        answer = api.post("/v1/boxes", json=fields)
        assert answer.status_code == 201, answer.text
        made.append(str(answer.json()["box"]["id"]))
        return made[-1]

    yield make
    for id in made:
        api.delete(f"/v1/boxes/{id}")


@pytest.fixture
def box(make_box: Callable[..., str]) -> str:
    return make_box()


@pytest.fixture
def local_box(local_server: ServerProcess) -> Iterator[str]:
    with api_of(local_server) as api:
        answer = api.post("/v1/boxes", json={})
        assert answer.status_code == 201, answer.text
        id = str(answer.json()["box"]["id"])
        yield id
        api.delete(f"/v1/boxes/{id}")
