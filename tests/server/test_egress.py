"""What boxes may reach, over HTTP: policies of boxes and environments, and what was decided."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from tests.server.conftest import api_of
from tests.server.egress_world import names_beside, outside

from holdfast.testing.server import ServerProcess


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """With real boxes, and one server in the world that has several names."""
    home = tmp_path_factory.mktemp("egress") / "home"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as hello:
        thread = threading.Thread(target=hello.serve_forever, args=(0.05,))
        thread.start()
        ports = {"80": hello.server_address[1]}
        names_beside(home).write_text(json.dumps(dict.fromkeys(("site.test", "other.test", "registry.test"), ports)))
        try:
            with ServerProcess(home, outside=outside) as server:
                yield server
                with api_of(server) as api:
                    for box in api.get("/v1/boxes", params={"limit": 200}).json()["boxes"]:
                        api.delete(f"/v1/boxes/{box['id']}")
        finally:
            hello.shutdown()
            thread.join()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[httpx.Client]:
    with api_of(server) as client:
        yield client


Make = Callable[..., str]


@pytest.fixture
def make(api: httpx.Client) -> Make:
    def make(mode: str = "allow", *allow: str, environment: str | None = None) -> str:
        wanted = {
            "spec": {"network": {"mode": mode, "allow": list(allow)}},
            "owner": {"environment": environment},
        }
        answer = api.post("/v1/boxes", json=wanted)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["box"]["id"])

    return make


def fetch(api: httpx.Client, box: str, host: str) -> int:
    """The exit code of curl in a box: 0, or 22 where it was refused."""
    argv = ["curl", "--silent", "--fail", "--max-time", "10", f"http://{host}/"]
    answer = api.post(f"/v1/boxes/{box}/exec", json={"argv": argv})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["exitCode"])


def test_a_box_reaches_what_its_policy_allows_and_every_decision_can_be_read(api: httpx.Client, make: Make) -> None:
    box = make("allow", "site.test")
    assert fetch(api, box, "site.test") == 0
    assert fetch(api, box, "other.test") == 22
    decisions = api.get(f"/v1/boxes/{box}/egress").json()["decisions"]
    assert [(each["host"], each["allowed"], each["method"]) for each in decisions] == [
        ("other.test", False, "GET"),
        ("site.test", True, "GET"),
    ]
    assert decisions[1]["received"] > 0
    assert "no rule covers" in decisions[0]["why"]
    denied = api.get(f"/v1/boxes/{box}/egress", params={"denied": True}).json()["decisions"]
    assert [each["host"] for each in denied] == ["other.test"]
    metrics = api.get(f"/v1/boxes/{box}/metrics").json()
    assert metrics["sent"] > 0
    assert metrics["received"] > 0


def test_decisions_are_read_page_by_page(api: httpx.Client, make: Make) -> None:
    box = make("allow", "site.test")
    for _ in range(3):
        fetch(api, box, "site.test")
    first = api.get(f"/v1/boxes/{box}/egress", params={"limit": 2}).json()
    assert len(first["decisions"]) == 2
    second = api.get(f"/v1/boxes/{box}/egress", params={"limit": 2, "cursor": first["nextCursor"]}).json()
    assert len(second["decisions"]) == 1
    assert second["nextCursor"] is None
    assert api.get(f"/v1/boxes/{box}/egress", params={"cursor": "made up"}).status_code == 422


def test_a_policy_is_changed_while_the_box_runs(api: httpx.Client, make: Make) -> None:
    box = make("none")
    changed = api.put(f"/v1/boxes/{box}/network", json={"mode": "allow", "allow": ["site.test"], "connections": 5})
    assert changed.status_code == 200, changed.text
    assert changed.json()["spec"]["network"] == {
        "mode": "allow", "allow": ["site.test"], "bandwidth": None, "connections": 5, "secrets": [],
    }  # fmt: skip
    assert fetch(api, box, "site.test") == 0
    assert api.put(f"/v1/boxes/{box}/network", json={"mode": "none"}).status_code == 200
    assert api.get(f"/v1/boxes/{box}").json()["spec"]["network"]["mode"] == "none"
    assert fetch(api, box, "site.test") != 0


def test_what_makes_no_sense_is_refused(api: httpx.Client, make: Make) -> None:
    box = make("allow", "site.test")
    for network in (
        {"mode": "open", "allow": ["site.test"]},
        {"mode": "allow", "allow": ["no host!"]},
        {"mode": "all"},
    ):
        assert api.put(f"/v1/boxes/{box}/network", json=network).status_code == 422
    assert api.put("/v1/boxes/b-none/network", json={"mode": "none"}).status_code == 404
    assert api.get("/v1/boxes/b-none/egress").status_code == 404


def test_the_policy_of_an_environment_reaches_its_running_boxes_at_once(api: httpx.Client, make: Make) -> None:
    box, stranger = make(environment="web"), make(environment="mobile")
    assert fetch(api, box, "site.test") == 22
    put = api.put("/v1/egress/policies/web", json={"mode": "allow", "allow": ["site.test"]})
    assert put.status_code == 200, put.text
    assert fetch(api, box, "site.test") == 0
    assert fetch(api, stranger, "site.test") == 22
    assert api.get("/v1/egress/policies/web").json()["network"]["allow"] == ["site.test"]
    assert [each["environment"] for each in api.get("/v1/egress/policies").json()["policies"]] == ["web"]
    assert api.delete("/v1/egress/policies/web").status_code == 204
    assert fetch(api, box, "site.test") == 22
    missing = api.get("/v1/egress/policies/web")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "policy_not_found"


def test_the_default_list_is_what_this_machine_uses_and_boxes_are_told(api: httpx.Client, make: Make) -> None:
    assert api.get("/v1/egress/default").json() == {"rules": [{"rule": "registry.test", "source": "pip"}]}
    box = make("allow")
    assert fetch(api, box, "registry.test") == 0
    assert fetch(api, box, "site.test") == 22
    told = api.post(f"/v1/boxes/{box}/exec", json={"argv": ["sh", "-c", "test $PIP_INDEX_URL = http://registry.test/"]})
    assert told.json()["exitCode"] == 0


def test_ways_out_policies_and_records_survive_a_server_that_is_killed(
    server: ServerProcess, api: httpx.Client, make: Make
) -> None:
    api.put("/v1/egress/policies/kept", json={"mode": "allow", "allow": ["site.test"]})
    box = make(environment="kept")
    assert fetch(api, box, "site.test") == 0
    api.get(f"/v1/boxes/{box}/egress")
    server.kill()
    server.start()
    with api_of(server) as again:
        assert fetch(again, box, "site.test") == 0
        assert fetch(again, box, "other.test") == 22
        assert again.get("/v1/egress/policies/kept").status_code == 200
        hosts = [each["host"] for each in again.get(f"/v1/boxes/{box}/egress").json()["decisions"]]
        assert set(hosts) == {"site.test", "other.test"}
        again.delete("/v1/egress/policies/kept")


def test_only_administrators_look_and_change(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.url, trust_env=False) as anybody:
        for method, path in (
            ("GET", "/v1/egress/default"),
            ("GET", "/v1/egress/policies"),
            ("PUT", "/v1/egress/policies/web"),
            ("GET", "/v1/boxes/b-1/egress"),
            ("PUT", "/v1/boxes/b-1/network"),
        ):
            assert anybody.request(method, path, json={"mode": "none"}).status_code == 401
