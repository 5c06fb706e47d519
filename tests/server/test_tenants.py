"""Tenants and roles: every route of the server is tried across tenants and with every role.

The routes come from the app itself. A route that `routes/roles.py` does not list fails here, and a new one is tried as
the others are.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute
from tests.server.box_providers import dummies
from tests.server.conftest import api_of
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from holdfast.api.access.tenants import TenantRole
from holdfast.server.routes import app as app_module
from holdfast.server.routes import roles
from holdfast.server.routes.box import websockets as box_websockets
from holdfast.server.routes.model import completion_socket
from holdfast.testing.server import ServerProcess
from holdfast.threads.access.tenant_names import tenant_named

MARK = "zebra"
"""In the name of everything that the first tenant has."""
SECRET = "striped"
"""In the content."""
HAVE_ANY_NAME = frozenset(
    {"/v1/agents/{name:path}", "/v1/providers/{name}", "/v1/egress/policies/{environment}", "/v1/members/{name}"}
)
"""Routes of things that every tenant has, or that are created by an empty request."""


def listed_routes() -> list[tuple[str, str]]:
    found = []
    for router in (box_websockets.router, completion_socket.router, *app_module.ROUTERS):
        for route in router.routes:
            if isinstance(route, WebSocketRoute):
                found.append((roles.SOCKET, route.path))
            elif isinstance(route, Route):
                found += [(method, route.path) for method in sorted(route.methods or ()) if method != "HEAD"]
    return found


ROUTES = listed_routes()
GUARDED = [each for each in ROUTES if each in roles.LEAST]


def test_every_route_says_which_role_it_needs() -> None:
    known = roles.LEAST.keys() | roles.PUBLIC | roles.BY_TOKEN | roles.OPERATOR
    assert set(ROUTES) - known == set(), "add new routes to server/routes/roles.py"
    assert roles.LEAST.keys() - set(ROUTES) == set(), "these routes are gone"


@dataclass
class World:
    """A server with a tenant that has things, and another one that wants them."""

    server: ServerProcess
    owner: httpx.Client
    """Of the default tenant, which has the things."""
    stranger: httpx.Client
    """Owner of the other tenant."""
    stranger_key: str
    ids: dict[str, str] = field(default_factory=dict)
    """What stands in the place of a parameter of a path: by parameter, or by the noun before it."""

    def path_of(self, pattern: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1].partition(":")[0]
            noun = pattern[: match.start()].rstrip("/").rpartition("/")[2]
            return self.ids.get(noun) or self.ids.get(name) or f"{MARK}-{name}"

        return re.sub(r"\{([^}]+)\}", value, pattern)

    def key(self, role: TenantRole) -> str:
        answer = self.owner.post("/v1/keys", json={"name": f"{role.value} key", "role": role.value})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["key"])

    def with_key(self, key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.server.url, headers=headers, timeout=240, trust_env=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("tenants") / "home"
    with ServerProcess(home, providers=dummies, daytona=True) as server, api_of(server) as owner:
        made = owner.post("/v1/tenants", json={"name": "acme"})
        assert made.status_code == 201, made.text
        key = made.json()["key"]["key"]
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as stranger:
            world = World(server, owner, stranger, key)
            furnish(world)
            yield world
            owner.delete(f"/v1/boxes/{world.ids['boxes']}")


def furnish(world: World) -> None:
    def ask(method: str, path: str, **given: Any) -> Any:
        answer = world.owner.request(method, path, **given)
        assert answer.status_code < 300, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    thread = ask("POST", "/v1/threads", json={"id": f"t-{MARK}", "title": f"the {MARK}"})["id"]
    ask("POST", f"/v1/threads/{thread}/chat", json={"text": SECRET})
    box = ask("POST", "/v1/boxes", json={"key": f"{MARK}-box"})["box"]["id"]
    ask("PUT", f"/v1/secrets/{MARK}", json={"value": f"very-{SECRET}-value", "bindings": [{"host": "api.example.com"}]})
    ask(
        "PUT",
        f"/v1/models/{MARK}",
        json={"apis": ["openai-chat"], "baseUrl": "http://127.0.0.1:9/v1", "key": "sk-1234567"},
    )
    ask("PUT", f"/v1/environments/{MARK}", json={"text": "egress = []\n"})
    ask("PUT", f"/v1/members/{MARK}", json={"role": "member"})
    key = ask("POST", "/v1/keys", json={"name": f"{MARK} key"})["id"]
    world.ids = {
        "threads": thread,
        "sessions": thread,
        "runs": thread,
        "tasks": thread,
        "interpreters": thread,
        "thread": thread,
        "tree": thread,
        "boxes": box,
        "keys": key,
        "secrets": MARK,
        "models": MARK,
        "environments": MARK,
        "members": MARK,
        "tenants": "acme",
        "scope": "thread",
        "budgets": "thread",
        "port": "80",
        "connect": "80",
    }


def state_of(world: World) -> dict[str, Any]:
    """What the first tenant has, without what changes by itself."""

    def ask(path: str) -> Any:
        answer = world.owner.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()

    return {
        "threads": [(each["id"], each["title"], each["entryCount"]) for each in ask("/v1/threads")["threads"]],
        "entries": ask(f"/v1/threads/{world.ids['threads']}/entries"),
        "boxes": [(each["id"], each["state"]) for each in ask("/v1/boxes")["boxes"]],
        "secrets": [(each["name"], each["version"]) for each in ask("/v1/secrets")["secrets"]],
        **{noun: ask(f"/v1/{noun}") for noun in ("keys", "models", "environments", "members", "budgets", "tenants")},
    }


def ask_socket(world: World, path: str, key: str) -> int:
    """The status of a refused handshake. 404 if the refusal is the first frame."""
    url = world.server.url.replace("http", "ws", 1) + path
    try:
        with connect(url, additional_headers={"Authorization": f"Bearer {key}"}, open_timeout=10) as socket:
            socket.send("{}")
            assert "error" in json.loads(socket.recv(timeout=240))
            return 404
    except InvalidStatus as refused:
        return refused.response.status_code


def ask(client: httpx.Client, method: str, path: str) -> httpx.Response:
    return client.request(method, path, json={} if method in ("POST", "PUT", "PATCH") else None)


def test_no_route_shows_or_changes_what_another_tenant_has(world: World) -> None:
    before = state_of(world)
    for method, pattern in GUARDED:
        path = world.path_of(pattern)
        if method == roles.SOCKET:
            assert ask_socket(world, path, world.stranger_key) in (400, 404, 422), pattern
            continue
        answer = ask(world.stranger, method, path)
        assert answer.status_code != 401, f"{method} {path}: {answer.text}"
        assert answer.status_code < 500 or answer.status_code == 503, f"{method} {path}: {answer.text}"
        assert SECRET not in answer.text, f"{method} {path}: {answer.text}"
        if "{" in pattern and pattern not in HAVE_ANY_NAME:
            assert answer.status_code >= 400, f"{method} {path}: {answer.text}"
    assert state_of(world) == before


def test_the_lists_of_a_tenant_have_nothing_of_another(world: World) -> None:
    key = world.owner.post("/v1/tenants", json={"name": "fresh"}).json()["key"]["key"]
    with world.with_key(key) as client:
        for method, pattern in GUARDED:
            if method == "GET" and "{" not in pattern:
                answer = client.get(pattern)
                assert answer.status_code < 500
                assert MARK not in answer.text, f"{pattern}: {answer.text}"
    assert world.owner.delete("/v1/tenants/fresh").status_code == 204


def test_no_route_answers_without_a_credential(world: World) -> None:
    with httpx.Client(base_url=world.server.url, timeout=240, trust_env=False) as nobody:
        for method, pattern in GUARDED:
            path = world.path_of(pattern)
            if method == roles.SOCKET:
                assert ask_socket(world, path, "") == 401, pattern
            else:
                assert ask(nobody, method, path).status_code == 401, f"{method} {path}"


@pytest.mark.parametrize("role", [TenantRole.VIEWER, TenantRole.MEMBER])
def test_a_route_refuses_a_role_that_is_not_enough(world: World, role: TenantRole) -> None:
    key = world.key(role)
    before = state_of(world)
    with world.with_key(key) as client:
        for method, pattern in GUARDED:
            path, needed = world.path_of(pattern), roles.LEAST[method, pattern]
            if role.includes(needed):
                continue
            if method == roles.SOCKET:
                assert ask_socket(world, path, key) == 403, pattern
                continue
            answer = ask(client, method, path)
            assert answer.status_code == 403, f"{method} {path}: {answer.text}"
            assert f"needs the role {needed.value}" in answer.json()["error"]["message"]
    assert state_of(world) == before


def test_a_viewer_reads_and_a_member_works(world: World) -> None:
    thread = world.ids["threads"]
    with world.with_key(world.key(TenantRole.VIEWER)) as viewer, world.with_key(world.key(TenantRole.MEMBER)) as member:
        assert SECRET in viewer.get(f"/v1/threads/{thread}/entries").text
        assert SECRET in viewer.get(f"/v1/stream/threads/{thread}?offset=-1").text
        assert viewer.get("/v1/caller").json()["role"] == "viewer"
        entry = [{"payload": {"type": "chat", "text": "a word"}}]
        assert viewer.post(f"/v1/stream/threads/{thread}", json=entry).status_code == 403
        assert viewer.put("/v1/stream/notes", json=[]).status_code == 403
        assert viewer.delete(f"/v1/stream/threads/{thread}").status_code == 403
        assert viewer.put("/v1/stream/__ds/subscriptions/mine", json={}).status_code == 403
        made = member.post("/v1/threads", json={"title": "made by a member"})
        assert made.status_code == 201
        assert member.delete(f"/v1/threads/{made.json()['id']}").status_code == 204


# --- surfaces beside REST ---


def test_streams_of_another_tenant_are_not_there(world: World) -> None:
    path = f"/v1/stream/threads/{world.ids['threads']}"
    entry = [{"payload": {"type": "chat", "text": "from afar"}}]
    for answer in (
        world.stranger.get(f"{path}?offset=-1"),
        world.stranger.get(f"{path}?offset=-1&live=long-poll"),
        world.stranger.get(f"{path}?offset=-1&live=sse"),
        world.stranger.head(path),
        world.stranger.post(path, json=entry),
        world.stranger.delete(path),
    ):
        assert answer.status_code == 404, answer.text
    fork = {"Stream-Forked-From": f"threads/{world.ids['threads']}"}
    assert world.stranger.put("/v1/stream/threads/t-mine", headers=fork).status_code == 404


def test_the_same_id_is_another_thread_in_another_tenant(world: World) -> None:
    id = world.ids["threads"]
    assert world.stranger.post("/v1/threads", json={"id": id, "title": "mine"}).status_code == 201
    assert world.stranger.get(f"/v1/threads/{id}").json()["title"] == "mine"
    assert world.owner.get(f"/v1/threads/{id}").json()["title"] == f"the {MARK}"
    assert world.stranger.delete(f"/v1/threads/{id}").status_code == 204
    assert world.owner.get(f"/v1/threads/{id}").status_code == 200


def test_tokens_and_links_work_in_their_own_tenant_only(world: World) -> None:
    """The tenant in a credential is only where it is checked: changing it makes the credential invalid."""
    id = world.ids["threads"]
    assert world.stranger.post("/v1/threads", json={"id": id}).status_code == 201
    token = world.stranger.post(f"/v1/threads/{id}/tokens", json={"scope": "write"}).json()["token"]
    link = world.stranger.post(f"/v1/threads/{id}/links", json={}).json()["path"].partition("#key=")[2]
    try:
        assert tenant_named(token) == "acme"
        with world.with_key(token) as client:
            assert SECRET not in client.get(f"/v1/threads/{id}/entries").text
            assert client.get(f"/v1/threads/{id}").json()["title"] != f"the {MARK}"
        with world.with_key(f"hfl_{id}.{link}") as client:
            assert client.get(f"/v1/threads/{id}").status_code == 200
        with world.with_key(f"hfl_{id}.{link.removeprefix('acme~')}") as client:
            assert client.get(f"/v1/threads/{id}").status_code == 401
        head, payload, signature = token.split(".")
        claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
        forged = base64.urlsafe_b64encode(json.dumps({**claims, "ten": "default"}).encode()).decode().rstrip("=")
        with world.with_key(f"{head}.{forged}.{signature}") as client:
            assert client.get(f"/v1/threads/{id}").status_code == 401
        with world.with_key(world.stranger_key.replace("hf_acme.", "hf_")) as client:
            assert client.get("/v1/caller").status_code == 401
        with world.with_key(world.stranger_key.replace("acme", "nobody")) as client:
            assert client.get("/v1/caller").status_code == 401
    finally:
        world.stranger.delete(f"/v1/threads/{id}")


def test_ports_of_a_box_of_another_tenant_are_refused(world: World) -> None:
    box = world.ids["boxes"]
    assert world.stranger.get(f"/v1/boxes/{box}/ports/80/").status_code == 401
    named = {"Host": f"80-{box}.localhost"}
    assert world.stranger.get("/", headers=named).status_code == 401


def test_sessions_of_another_tenant_are_refused(world: World) -> None:
    """A host name says which tenant its session is of. The same name in another tenant is another session."""
    for name in (f"t-{MARK}.localhost", f"t-{MARK}--at-acme.localhost", f"app--t-{MARK}.localhost"):
        answer = world.stranger.get("/", headers={"Host": name})
        assert answer.status_code >= 400
        assert SECRET not in answer.text


def test_the_daytona_api_has_the_boxes_of_its_tenant_only(world: World) -> None:
    box, api = world.ids["boxes"], "/compat/daytona"
    assert world.owner.get(f"{api}/sandbox").status_code == 200
    listed = world.stranger.get(f"{api}/sandbox")
    assert listed.status_code == 200
    assert box not in listed.text
    assert world.stranger.get(f"{api}/sandbox/{box}").status_code == 404
    with world.with_key(world.key(TenantRole.VIEWER)) as viewer:
        assert viewer.get(f"{api}/sandbox").status_code == 403


def test_the_guest_api_does_not_take_an_api_key(world: World) -> None:
    for path in ("/v1/guest/heartbeat", f"/v1/guest/stream/threads/{world.ids['threads']}"):
        assert world.stranger.post(path, json={}).status_code in (401, 403, 404), path


def test_public_keys_of_webhooks_are_those_of_the_tenant(world: World) -> None:
    path = "/v1/stream/__ds/jwks.json"
    with httpx.Client(base_url=world.server.url, trust_env=False) as nobody:
        own, other = nobody.get(path).json(), nobody.get(f"{path}?tenant=acme").json()
        unknown = nobody.get(f"{path}?tenant=nobody").json()
    assert own["keys"] != other["keys"]
    assert unknown == own


# --- administration ---


def test_only_owners_of_the_default_tenant_administer_tenants(world: World) -> None:
    for method, path in (("GET", "/v1/tenants"), ("POST", "/v1/tenants"), ("DELETE", "/v1/tenants/acme")):
        answer = world.stranger.request(method, path, json={"name": "mine"} if method == "POST" else None)
        assert answer.status_code == 403, answer.text


def test_a_tenant_is_removed_with_all_that_it_has(world: World) -> None:
    made = world.owner.post("/v1/tenants", json={"name": "shortlived"})
    key = made.json()["key"]["key"]
    with world.with_key(key) as client:
        assert client.post("/v1/threads", json={"id": "t-gone"}).status_code == 201
        assert world.owner.post("/v1/tenants", json={"name": "shortlived"}).status_code == 409
        assert world.owner.delete("/v1/tenants/shortlived").status_code == 204
        assert client.get("/v1/threads").status_code == 401
    assert not (world.server.home / "tenants" / "shortlived").exists()
    again = world.owner.post("/v1/tenants", json={"name": "shortlived"}).json()["key"]["key"]
    with world.with_key(again) as client:
        assert client.get("/v1/threads").json()["threads"] == []
    with world.with_key(key) as client:
        assert client.get("/v1/threads").status_code == 401, "a key of the tenant that was removed"
    assert world.owner.delete("/v1/tenants/shortlived").status_code == 204


def test_a_later_tenant_of_the_same_name_finds_nothing_however_deep_the_folders_were(world: World) -> None:
    """Code in a box can nest folders deeper than Python recurses."""
    made = world.owner.post("/v1/tenants", json={"name": "deep"}).json()["key"]["key"]
    with world.with_key(made) as client:
        assert client.post("/v1/threads", json={"id": "t-deep"}).status_code == 201
    home = world.server.home / "tenants" / "deep"
    (home / "kept").write_text("of the old tenant")
    folder = os.open(home, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    assert world.owner.delete("/v1/tenants/deep").status_code == 204
    assert not home.exists()
    assert list(home.parent.glob(".removed-*")) == []
    # What an interrupted removal left is not a later tenant's either.
    home.mkdir()
    (home / "kept").write_text("of the old tenant")
    assert world.owner.post("/v1/tenants", json={"name": "deep"}).status_code == 201
    assert not (home / "kept").exists()
    assert world.owner.delete("/v1/tenants/deep").status_code == 204


def test_a_tenant_with_boxes_is_not_removed(world: World) -> None:
    box = world.stranger.post("/v1/boxes", json={}).json()["box"]["id"]
    refused = world.owner.delete("/v1/tenants/acme")
    assert refused.status_code == 409
    assert "box" in refused.json()["error"]["message"]
    assert world.stranger.delete(f"/v1/boxes/{box}").status_code == 200


@pytest.mark.parametrize("name", ["default", "Acme", "a-b", "a.b", "../x", "", "1a", "a" * 17, "a~b"])
def test_a_tenant_has_a_plain_name(world: World, name: str) -> None:
    assert world.owner.post("/v1/tenants", json={"name": name}).status_code in (400, 422)


def test_the_role_of_a_member_holds_for_the_keys_that_they_have(world: World) -> None:
    world.stranger.put("/v1/members/kim", json={"role": "member"})
    key = world.stranger.post("/v1/keys", json={"name": "laptop", "member": "kim"}).json()["key"]
    with world.with_key(key) as kim:
        assert kim.get("/v1/caller").json() == {
            **kim.get("/v1/caller").json(),
            "tenant": "acme",
            "user": "kim",
            "role": "member",
        }
        assert kim.get("/v1/keys").status_code == 403
        assert world.stranger.put("/v1/members/kim", json={"role": "viewer"}).status_code == 200
        assert kim.post("/v1/threads", json={}).status_code == 403
        assert world.stranger.delete("/v1/members/kim").status_code == 204
        assert kim.get("/v1/caller").status_code == 401
    world.stranger.put("/v1/members/kim", json={"role": "owner"})
    with world.with_key(key) as kim:
        assert kim.get("/v1/caller").status_code == 401, "a new member of that name does not get the old keys"
    assert world.stranger.delete("/v1/members/kim").status_code == 204


def test_an_owner_cannot_lock_themselves_out(world: World) -> None:
    world.stranger.put("/v1/members/lee", json={"role": "owner"})
    key = world.stranger.post("/v1/keys", json={"name": "laptop", "member": "lee"}).json()["key"]
    with world.with_key(key) as lee:
        assert lee.put("/v1/members/lee", json={"role": "viewer"}).status_code == 409
        assert lee.delete("/v1/members/lee").status_code == 409
    world.stranger.delete("/v1/members/lee")


def test_tenants_survive_a_restart(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", providers=dummies) as server:
        with api_of(server) as owner:
            key = owner.post("/v1/tenants", json={"name": "acme"}).json()["key"]["key"]
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as client:
            assert client.post("/v1/threads", json={"id": "t-kept"}).status_code == 201
        server.restart()
        with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as client:
            assert client.get("/v1/stream/threads/t-kept?offset=-1").status_code == 200
            assert client.get("/v1/threads/t-kept").status_code == 200


def test_a_tenant_whose_data_is_damaged_harms_no_other(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ServerProcess(home, providers=dummies) as server:
        with api_of(server) as owner:
            keys = [owner.post("/v1/tenants", json={"name": name}).json()["key"]["key"] for name in ("acme", "bolt")]
        server.stop()
        for leftover in (home / "tenants" / "acme").glob("holdfast.db*"):
            leftover.unlink()
        (home / "tenants" / "acme" / "holdfast.db").write_bytes(b"no database" * 1000)
        server.start()
        statuses = []
        for key in keys:
            headers = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as client:
                statuses.append(
                    [
                        client.get(path).status_code
                        for path in ("/v1/threads", "/v1/stream/threads/t-1?offset=-1", "/v1/boxes/b-none/ports/80/")
                    ]
                )
        assert statuses == [[500, 500, 401], [200, 404, 401]]
        with api_of(server) as owner:
            assert owner.get("/v1/threads").status_code == 200


# --- names ---


@pytest.mark.parametrize(
    ("credential", "tenant"),
    [
        (None, "default"),
        ("hf_abc_def-ghi", "default"),
        ("hf_acme.abc_def-ghi", "acme"),
        ("hf_Acme.abc", "default"),
        ("hf_acme.", "default"),
        ("hf_acme.a.b", "default"),
        ("hfl_t-1.66aa.mac", "default"),
        ("hfl_t-1.acme~66aa.mac", "acme"),
        ("a.b.c", "default"),
        ("....", "default"),
        ("x.eyJ0ZW4iOiJhY21lIn0.y", "acme"),
        ("eyJ0ZW4iOiJhY21lIn0.y", "acme"),
        ("x.eyJ0ZW4iOiIuLi9hIn0.y", "default"),
        ("x." + "W" * 4000 + ".y", "default"),
    ],
)
def test_a_credential_names_its_tenant(credential: str | None, tenant: str) -> None:
    assert tenant_named(credential) == tenant
