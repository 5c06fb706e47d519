"""Boxes that sleep, and what boxes use, over HTTP on a real server, with dummies for boxes."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.service.boxes import Boxes
from holdfast.server.telemetry.box_metrics import BoxSamples, most_active
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.dummy import DummyProvider
from holdfast.testing.server import ServerProcess
from holdfast.testing.store_suites.box_rows import box_row as row


def until(check: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + 240
    while not check():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def new_box(api: httpx.Client, **spec: object) -> str:
    made = api.post("/v1/boxes", json={"spec": spec})
    assert made.status_code == 201, made.text
    assert made.json()["box"]["spec"]["onIdle"] == spec.get("onIdle")
    id: str = made.json()["box"]["id"]
    return id


def state_of(api: httpx.Client, id: str) -> str:
    state: str = api.get(f"/v1/boxes/{id}").json()["state"]
    return state


REQUESTS: dict[str, Callable[[httpx.Client, str], httpx.Response]] = {
    "exec": lambda api, id: api.post(f"/v1/boxes/{id}/exec", json={"argv": ["true"]}),
    "spawn": lambda api, id: api.post(f"/v1/boxes/{id}/processes", json={"argv": ["true"]}),
    "write": lambda api, id: api.put(f"/v1/boxes/{id}/files", params={"path": "a"}, content=b"1"),
    "read": lambda api, id: api.get(f"/v1/boxes/{id}/files/list", params={"path": "."}),
    "start": lambda api, id: api.post(f"/v1/boxes/{id}/start"),
}
LOOKS = ("", "/metrics", "/ping", "/diagnose", "/processes")


def test_a_box_hibernates_when_idle_looking_leaves_it_so_and_requests_wake_it(api: httpx.Client) -> None:
    id = new_box(api, onIdle="hibernate", idleSeconds=1)
    for name, request in REQUESTS.items():
        until(lambda: state_of(api, id) == "hibernated", f"it does not fall asleep before {name}")
        for look in LOOKS:
            assert api.get(f"/v1/boxes/{id}{look}").status_code in (200, 409), look
        until(lambda: usages_of(api, id) != [], "it is not listed")
        assert state_of(api, id) == "hibernated"
        answer = request(api, id)
        assert answer.status_code < 300, (name, answer.text)
        assert state_of(api, id) == "running", name
    api.delete(f"/v1/boxes/{id}")


def usages_of(api: httpx.Client, id: str) -> list[dict[str, Any]]:
    return [each for each in api.get("/v1/boxes/metrics").json()["boxes"] if each["id"] == id]


@pytest.mark.parametrize("spec", [{"onIdle": "sleep"}, {"onIdle": 1}, {"onIdle": "hibernate", "idleSeconds": -1}])
def test_what_makes_no_sense_is_refused(api: httpx.Client, spec: dict[str, object]) -> None:
    assert api.post("/v1/boxes", json={"spec": spec}).status_code == 422


def test_a_provider_that_cannot_pause_says_so(api: httpx.Client) -> None:
    answer = api.post("/v1/boxes", json={"spec": {"onIdle": "pause"}})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "unsupported")
    assert "pause" in answer.json()["error"]["message"]


def test_metrics_of_each_box_are_there_and_go_with_it(api: httpx.Client, dummy_server: ServerProcess) -> None:
    id = new_box(api)
    api.put(f"/v1/boxes/{id}/files", params={"path": "a"}, content=bytes(5000))
    until(lambda: usages_of(api, id) != [], "it is not listed")  # a list may be as of a second ago
    (usage,) = usages_of(api, id)
    assert usage["state"] == "running"
    assert usage["metrics"]["disk"] >= 5000
    series = re.compile(rf'^holdfast_box_disk_bytes{{box="{id}",provider="local"}} (\S+)$', re.MULTILINE)

    def scraped() -> str:
        return httpx.get(f"{dummy_server.url}/metrics", timeout=240).text

    until(lambda: series.search(scraped()) is not None, "it has no series")
    found = series.search(scraped())
    assert found is not None
    assert float(found[1]) >= 5000
    assert "holdfast_boxes_left_out 0.0" in scraped()
    api.delete(f"/v1/boxes/{id}")
    assert id not in scraped()


@pytest.mark.anyio
async def test_a_scrape_waits_for_no_box(tmp_path: Path) -> None:
    hanging = asyncio.Event()

    async def hang() -> None:
        hanging.set()
        await asyncio.Event().wait()

    async with DummyProvider(tmp_path / "dummy") as provider, SqliteBoxes(tmp_path / "data.db") as rows:
        boxes = Boxes(rows, {"dummy": provider}, node="here")
        samples = BoxSamples()
        made = await boxes.create(BoxSpec(provider="dummy"))
        await samples.fresh(boxes)
        provider.at["metrics"] = hang
        samples._latest = replace(samples._latest, at=0)
        samples._disk.clear()
        async with asyncio.timeout(240):
            for _ in range(3):
                assert [each.row.id for each in samples.latest(boxes, {made.id}).usages] == [made.id]
            await hanging.wait()
            assert samples.latest(boxes, set()).usages == ()
            await samples.close()
        await boxes.close()


def test_of_many_boxes_those_that_worked_last_are_sampled() -> None:
    rows = [row(id=f"b-{number}", last_active_at=active) for number, active in enumerate((5, 1, 9, 7))]
    assert [each.id for each in most_active(rows, 2)] == ["b-2", "b-3"]
    assert most_active(rows, 4) == rows
