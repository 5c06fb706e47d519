"""Every route is asked about things of another tenant, and about the same things by their owner.

The owner is the control: where both are told the same, the request would prove nothing. The routes come from the app,
so that a new one is asked, too: see `furnished.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final, cast

import httpx
import pytest
from starlette.routing import Mount, Route, WebSocketRoute
from tests.harnesses import scripted_agent
from tests.server.box_providers import dummies
from tests.server.conftest import api_of
from tests.server.furnished import MARK, SECRET, Furnished, all_routes, furnish
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from holdfast.compat.daytona import app as daytona_app
from holdfast.server.routes import roles
from holdfast.testing.server import ServerProcess

OWN: Final = frozenset(
    {
        ("PUT", "/v1/environments/{name}"),
        ("PUT", "/v1/models/{name}"),
        ("PUT", "/v1/secrets/{name}"),
        ("PUT", "/v1/members/{name}"),
        ("PUT", "/v1/prices/{name}/{model:path}"),
        ("PUT", "/v1/egress/policies/{environment}"),
    }
)
"""A name is one of the tenant's own here: putting it makes one for the caller."""
SAME_FOR_ALL: Final = frozenset(
    {
        ("GET", "/v1/agents/{name:path}"),
        ("GET", "/v1/providers/{name}"),
        ("PUT", "/v1/providers/{name}"),
        ("POST", "/v1/providers/{name}/test"),
        ("DELETE", "/v1/providers/{name}"),
        # The dummy provider has no images.
        ("GET", "/v1/images/{name:path}"),
        ("DELETE", "/v1/images/{name:path}"),
    }
)
"""About things of the server, which all tenants have."""
LAST: Final = re.compile("terminate|cancel|revoke|hibernate|move|stop$|complete")
"""Requests after which the owner has less to be asked about."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Furnished, httpx.Client, str]]:
    home = tmp_path_factory.mktemp("across") / "home"
    with (
        ServerProcess(home, providers=dummies, agents=scripted_agent.find, daytona=True) as server,
        api_of(server) as owner,
    ):
        made = owner.post("/v1/tenants", json={"name": "acme"})
        assert made.status_code == 201, made.text
        key = made.json()["key"]["key"]
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=60, trust_env=False) as stranger:
            try:
                yield furnish(server, owner), stranger, key
            finally:
                for box in owner.get("/v1/boxes").json()["boxes"]:
                    owner.delete(f"/v1/boxes/{box['id']}")


def about_things() -> list[tuple[str, str]]:
    """The routes about one thing, in an order in which each finds its thing."""

    def order(route: tuple[str, str]) -> tuple[bool, bool, int]:
        method, pattern = route
        deletes = method == "DELETE"
        return deletes, route in OWN or LAST.search(pattern) is not None, -pattern.count("/") if deletes else 0

    return sorted((each for each in all_routes() if "{" in each[1] and each in roles.LEAST), key=order)


def told(client: httpx.Client, world: Furnished, method: str, pattern: str) -> tuple[int, str]:
    """The status, and the code and message of an error: not the body, which may be endless."""
    request = world.request(method, pattern)
    with client.stream(method, request.path, json=request.body) as answer:
        if answer.status_code < 400:
            return answer.status_code, ""
        answer.read()
        error: dict[str, Any] = answer.json()["error"]
        return answer.status_code, f"{error['code']}: {error['message']} {error.get('hint')}"


def status_of_socket(world: Furnished, pattern: str, key: str) -> int:
    url = world.server.url.replace("http", "ws", 1) + world.request(roles.SOCKET, pattern).path
    try:
        with connect(url, additional_headers={"Authorization": f"Bearer {key}"}, open_timeout=60):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def what_the_owner_has(world: Furnished) -> dict[str, Any]:
    thread, session = world.ids["threads"], world.ids["sessions"]
    lists = [
        "keys",
        "models",
        "environments",
        "members",
        "budgets",
        "webhooks",
        "secrets",
        "volumes",
        "snapshots",
        "logins",
    ]
    paths = [f"/v1/{each}" for each in (*lists, "egress/policies", "prices", "inbox", "tenants", "interpreters")]
    paths += [f"/v1/threads/{thread}{each}" for each in ("/entries", "/shares", "/tasks")]
    paths += [f"/v1/sessions/{session}{each}" for each in ("/tunnels", "/members")]
    paths += [f"/v1/workflow-executions/{world.ids['workflow-executions']}"]
    found = {}
    for path in paths:
        answer = world.owner.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        found[path] = _without_times(answer.json())
    for noun in ("threads", "boxes"):
        found[noun] = sorted(each["id"] for each in world.owner.get(f"/v1/{noun}").json()[noun])
    return found


def _without_times(value: Any) -> Any:
    """Agents work meanwhile, and the time passes."""
    if isinstance(value, dict):
        moving = re.compile("At$|^status$|^run$|^isLive$|^cost$|^tokens$|^size$|^openTasks$|^reported$")
        return {name: _without_times(each) for name, each in value.items() if not moving.search(name)}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def expected(method: str, pattern: str) -> range | tuple[int, ...]:
    """The statuses that a stranger may get."""
    if pattern.startswith("/v1/tenants/") or (method, pattern) in roles.OPERATOR:
        return (403,)
    if (method, pattern) in OWN or (method == "DELETE" and ("PUT", pattern) in OWN):
        return range(200, 300)
    return (404,)


def test_another_tenant_finds_nothing_by_any_route_where_the_owner_finds_it(
    world: tuple[Furnished, httpx.Client, str],
) -> None:
    own, stranger, key = world
    routes = [each for each in about_things() if each not in SAME_FOR_ALL]
    before = what_the_owner_has(own)
    strangers = {}
    for method, pattern in routes:
        if method == roles.SOCKET:
            strangers[method, pattern] = status_of_socket(own, pattern, key), ""
        else:
            strangers[method, pattern] = told(stranger, own, method, pattern)
    assert {route: answer for route, answer in strangers.items() if answer[0] not in expected(*route)} == {}
    assert [route for route, (_, message) in strangers.items() if SECRET in message] == []
    assert what_the_owner_has(own) == before

    same = {}
    own_key = own.server.api_key
    assert own_key is not None
    for method, pattern in routes:
        if method == roles.SOCKET:
            answer = status_of_socket(own, pattern, own_key), ""
        else:
            answer = told(own.owner, own, method, pattern)
        if answer == strangers[method, pattern] and expected(method, pattern) == (404,):
            same[method, pattern] = answer
    assert same == {}, "the owner is told the same, so that what the stranger is told proves nothing"


def test_every_route_of_the_app_says_who_may_use_it() -> None:
    """Also those that belong to no router."""
    known = roles.LEAST.keys() | roles.PUBLIC | roles.BY_TOKEN | roles.OPERATOR
    assert set(all_routes()) - known == set()


# --- the Daytona API ---


def daytona_routes() -> list[tuple[str, str]]:
    """The routes about a sandbox, a volume or a snapshot, without those that say that there is no such thing at all."""
    found = []
    for route in daytona_app.create_app(cast("Any", SimpleNamespace(closers=[]))).routes:
        inner = [(route.path, each) for each in route.routes] if isinstance(route, Mount) else [("", route)]
        for above, each in inner:
            assert isinstance(each, Route | WebSocketRoute)
            if isinstance(each, Route) and "{" in above + each.path and not each.endpoint.__name__.startswith("no_"):
                found += [(method, above + each.path) for method in sorted(each.methods or ()) if method != "HEAD"]
    return [each for each in found if not each[1].startswith("/organizations/")]


def test_another_tenant_finds_nothing_by_any_route_of_the_daytona_api(
    world: tuple[Furnished, httpx.Client, str],
) -> None:
    own, _, _ = world
    made = own.owner.post("/v1/tenants", json={"name": "bolt"})
    api = "/compat/daytona"
    sandbox = own.owner.post(f"{api}/sandbox", json={}).json()["id"]
    volume = own.owner.post(f"{api}/volumes", json={"name": MARK}).json()["id"]
    kept = own.owner.post(f"{api}/sandbox/{sandbox}/snapshot", json={"name": MARK})
    assert kept.status_code < 300, kept.text

    def answer(client: httpx.Client, method: str, pattern: str) -> tuple[int, str]:
        path = pattern.replace("{sandbox}", sandbox).replace("/volumes/{id:path}", f"/volumes/{volume}")
        path = re.sub(r"\{[^}]+\}", MARK, path.replace("{program}", "xvfb"))
        with client.stream(method, api + path, json={} if method in ("POST", "PUT", "PATCH") else None) as answer:
            return answer.status_code, "" if answer.status_code < 400 else json.loads(answer.read())["message"]

    def order(route: tuple[str, str]) -> tuple[bool, bool, int]:
        return route[0] == "DELETE", re.search("(stop|pause|archive)$", route[1]) is not None, -route[1].count("/")

    routes = sorted(daytona_routes(), key=order)
    headers = {"Authorization": f"Bearer {made.json()['key']['key']}"}
    with httpx.Client(base_url=own.server.url, headers=headers, timeout=60, trust_env=False) as stranger:
        strangers = {route: answer(stranger, *route) for route in routes}
    # 400: what is wrong with a request by itself may be said before anything is looked up.
    assert {route: told for route, told in strangers.items() if told[0] not in (400, 404)} == {}
    assert own.owner.get(f"{api}/sandbox/{sandbox}").json()["state"] == "started"
    owners = {route: answer(own.owner, *route) for route in routes}
    same = {route: told for route, told in owners.items() if told == strangers[route] and told[0] != 400}
    assert same == {}, "the owner is told the same, so that what the stranger is told proves nothing"
    assert own.owner.delete("/v1/tenants/bolt").status_code == 204
