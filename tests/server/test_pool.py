"""The warm pool of a server: filled by demand, counted, gone when the server is."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx
from tests.server.box_providers import dummies
from tests.server.conftest import api_of

from holdfast.testing.server import ServerProcess


def counted(api: httpx.Client) -> dict[str, float]:
    lines = re.findall(r"^holdfast_pool_(\S+) (\S+)$", api.get("/metrics").text, re.MULTILINE)
    return {name: float(value) for name, value in lines}


def wait_for(api: httpx.Client, name: str, value: float) -> None:
    deadline = time.monotonic() + 240
    while counted(api).get(name) != value:
        assert time.monotonic() < deadline, counted(api)
        time.sleep(0.02)


def create(api: httpx.Client) -> str:
    answer = api.post("/v1/boxes", json={"spec": {"labels": {"some": "one"}}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["box"]["id"])


def test_a_box_of_a_kind_that_was_asked_for_twice_comes_out_of_the_pool(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", providers=dummies, pool=2) as server, api_of(server) as api:
        first = [create(api), create(api)]
        wait_for(api, "boxes", 2)
        assert {each["id"] for each in api.get("/v1/boxes").json()["boxes"]} == set(first)
        made = create(api)
        assert counted(api)['takes_total{outcome="hit"}'] == 1
        shown = api.get(f"/v1/boxes/{made}").json()
        assert (shown["state"], shown["spec"]["labels"]) == ("running", {"some": "one"})
        assert api.post(f"/v1/boxes/{made}/exec", json={"argv": ["true"]}).json()["exitCode"] == 0
    assert {path.name for path in (tmp_path / "home" / "dummy" / "boxes").iterdir()} == {*first, made}


def test_a_server_can_do_without_a_pool(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", providers=dummies, pool=0) as server, api_of(server) as api:
        for _ in range(4):
            create(api)
        assert counted(api)["wanted"] == 0
        assert len(list((tmp_path / "home" / "dummy" / "boxes").iterdir())) == 4


def test_the_end_of_a_server_is_the_end_of_the_pool_that_a_killed_one_left(tmp_path: Path) -> None:
    """At once, and not only when the leases of the dead have expired."""
    with ServerProcess(tmp_path / "home", providers=dummies, pool=2) as server:
        with api_of(server) as api:
            kept = {create(api), create(api)}
            wait_for(api, "boxes", 2)
        server.kill()
        server.start()
        with api_of(server) as api:
            assert {each["id"] for each in api.get("/v1/boxes").json()["boxes"]} == kept
    assert {path.name for path in (tmp_path / "home" / "dummy" / "boxes").iterdir()} == kept


def test_the_next_server_takes_the_pool_of_a_killed_one_up_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", providers=dummies, pool=2) as server:
        with api_of(server) as api:
            kept = {create(api), create(api)}
            wait_for(api, "boxes", 2)
        ahead = {path.name for path in (tmp_path / "home" / "dummy" / "boxes").iterdir()} - kept
        server.kill()
        server.start()
        with api_of(server) as api:
            wait_for(api, "boxes", 2)
            assert create(api) in ahead
