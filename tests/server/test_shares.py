"""Shared threads: anybody who has the link reads the page, and nothing else, until it expires or is revoked."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from tests.server.box_providers import dummies
from tests.server.conftest import api_of

from holdfast.testing.clock import ShiftedClocks
from holdfast.testing.server import ServerProcess

HOSTILE = "<script>alert(1)</script>\u202e"


class World:
    def __init__(self, server: ServerProcess, clocks: ShiftedClocks, owner: httpx.Client) -> None:
        self.server = server
        self.clocks = clocks
        self.owner = owner
        self.thread = owner.post("/v1/threads", json={"title": "shared one"}).json()["id"]
        owner.post(f"/v1/threads/{self.thread}/chat", json={"text": HOSTILE})

    def share(self, client: httpx.Client | None = None, thread: str | None = None, **fields: int) -> tuple[str, str]:
        made = (client or self.owner).post(f"/v1/threads/{thread or self.thread}/shares", json=fields)
        assert made.status_code == 201, made.text
        return made.json()["path"], made.json()["share"]["id"]

    def visit(self, path: str) -> httpx.Response:
        with httpx.Client(base_url=self.server.url, timeout=240, trust_env=False) as nobody:
            return nobody.get(path)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("shares")
    clocks = ShiftedClocks(folder / "clock")
    with ServerProcess(folder / "home", providers=dummies, clocks=clocks) as server, api_of(server) as owner:
        yield World(server, clocks, owner)


def test_whoever_has_the_link_reads_the_page(world: World) -> None:
    path, _ = world.share()
    page = world.visit(path)
    assert page.status_code == 200
    assert "shared one" in page.text
    assert "&lt;script&gt;" in page.text
    assert "<script" not in page.text
    assert "script-src" not in page.headers["content-security-policy"]
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert page.headers["referrer-policy"] == "no-referrer"
    assert page.headers["cache-control"] == "no-store"
    assert path.removeprefix("/s/") not in world.server.read_log()


def test_a_shared_page_has_no_cost_and_what_agents_say_is_markdown(world: World) -> None:
    thread = world.owner.post("/v1/threads", json={"title": "told"}).json()["id"]
    said = [
        {"id": "a", "payload": {"type": "pi.assistant", "text": "It **works**. [Look](https://evil.example)"}},
        {"id": "b", "payload": {"type": "signal.run.finished", "status": "completed", "usage": {"cost": 12.5}}},
    ]
    assert world.owner.post(f"/v1/stream/threads/{thread}", json=said).status_code < 300
    page = world.visit(world.share(thread=thread)[0]).text
    assert "<strong>works</strong>" in page
    assert "completed" in page
    assert "12.5" not in page
    assert "<dt>cost</dt>" not in page
    assert "href" not in page


def test_the_page_of_an_enormous_thread_has_its_beginning(world: World) -> None:
    thread = world.owner.post("/v1/threads", json={"title": "enormous"}).json()["id"]
    for number in range(20):
        text = f"number {number} " + "x" * (1024 * 1024)
        entry = [{"payload": {"type": "chat", "role": "user", "text": text}}]
        assert world.owner.post(f"/v1/stream/threads/{thread}", json=entry).is_success
    page = world.visit(world.share(thread=thread)[0])
    assert page.status_code == 200
    assert "number 0 " in page.text
    assert "number 19 " not in page.text
    assert re.search(r"Only the first 1\d entries are shown", page.text)


def test_a_link_is_good_for_the_page_only(world: World) -> None:
    secret = world.share()[0].removeprefix("/s/")
    headers = {"Authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=world.server.url, headers=headers, trust_env=False) as client:
        for path in (f"/v1/threads/{world.thread}", f"/v1/stream/threads/{world.thread}?offset=-1", "/v1/caller"):
            assert client.get(path).status_code == 401


def test_a_share_is_revoked_at_once_and_expires(world: World) -> None:
    path, id = world.share()
    other, _ = world.share(ttlSeconds=60)
    listed = world.owner.get(f"/v1/threads/{world.thread}/shares").json()["shares"]
    assert id in [each["id"] for each in listed]
    assert path.removeprefix("/s/") not in str(listed)
    assert world.owner.delete(f"/v1/threads/{world.thread}/shares/{id}").status_code == 204
    assert world.owner.delete(f"/v1/threads/{world.thread}/shares/{id}").status_code == 404
    assert world.visit(path).status_code == 404
    assert world.visit(other).status_code == 200
    world.clocks.jump(60_001)
    assert world.visit(other).status_code == 404
    for hostile in ("/s/", "/s/x", "/s/hfv_", "/s/hfv_nobody.x", "/s/" + "a" * 5000):
        assert world.visit(hostile).status_code in (404, 414)


def test_a_share_is_of_its_tenant(world: World) -> None:
    key = world.owner.post("/v1/tenants", json={"name": "acme"}).json()["key"]["key"]
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=world.server.url, headers=headers, trust_env=False) as client:
        client.post("/v1/threads", json={"id": world.thread, "title": "theirs"})
        path, _ = world.share(client)
        assert client.post("/v1/threads/t-none/shares", json={}).status_code == 404
    assert "theirs" in world.visit(path).text
    assert world.visit(path.replace("acme.", "")).status_code == 404
    assert world.owner.delete("/v1/tenants/acme").status_code == 204
    assert world.visit(path).status_code == 404


def test_the_share_of_a_deleted_thread_shows_nothing(world: World) -> None:
    thread = world.owner.post("/v1/threads", json={"title": "gone soon"}).json()["id"]
    path, _ = world.share(thread=thread)
    world.owner.delete(f"/v1/threads/{thread}")
    assert world.visit(path).status_code == 404
    assert world.owner.post("/v1/threads", json={"id": thread, "title": "another one"}).status_code == 201
    assert world.visit(path).status_code == 404, "a new thread of the same id"
