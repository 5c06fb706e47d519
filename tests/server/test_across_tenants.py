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


@pytest.fixture
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
        with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as stranger:
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


STABLE: Final = ("keys", "models", "environments", "members", "budgets", "webhooks", "secrets", "egress/policies")
GROWING: Final = ("threads", "boxes", "sessions", "runs", "snapshots", "volumes", "interpreters", "logins")
"""Agents work meanwhile, and make more of these."""


def what_the_owner_has(world: Furnished) -> tuple[dict[str, Any], set[str]]:
    """Returns what only people change, and the ids of what else there is."""

    def ask(path: str) -> dict[str, Any]:
        answer = world.owner.get(path)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return dict(answer.json())

    thread, session = world.ids["threads"], world.ids["sessions"]
    paths = [
        *STABLE,
        "tenants",
        f"threads/{thread}/shares",
        f"sessions/{session}/tunnels",
        f"sessions/{session}/members",
    ]
    ids = {each.get("id") or each["name"] for noun in GROWING for each in ask(f"/v1/{noun}")[noun]}
    entries = {each["id"] for each in ask(f"/v1/threads/{thread}/entries")["entries"]}
    return {path: ask(f"/v1/{path}") for path in paths}, ids | entries


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
    stable, ids = what_the_owner_has(own)
    assert stable == before[0]
    assert before[1] - ids == set()

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


WORK: Final = {"agent": "scripted", "model": f"{MARK}/m", "prompt": "hello"}
BY_BODY: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/v1/threads", {"parent": "threads"}),
    ("/v1/keys", {"name": "own", "member": "members"}),
    ("/v1/environments/check", {"environment": "environments"}),
    ("/v1/environments/build", {"environment": "environments"}),
    ("/v1/runs/check", {"agent": "scripted", "model": f"{MARK}/m", "thread": "threads"}),
    ("/v1/runs", {**WORK, "thread": "threads"}),
    ("/v1/runs", {**WORK, "environment": "environments"}),
    ("/v1/runs", {**WORK, "budget": {"cost": 1}}),  # by the name of the model
    ("/v1/sessions", {"agent": "scripted", "model": f"{MARK}/m", "environment": "environments"}),
    ("/v1/sessions", {"agent": "scripted", "model": f"{MARK}/m", "parent": "sessions"}),
    ("/v1/boxes", {"spec": {"volumes": [{"volume": "volumes", "path": "/v"}]}}),
]
"""Things that a body names: the noun stands for its id."""


def test_another_tenant_finds_nothing_that_a_body_names(world: tuple[Furnished, httpx.Client, str]) -> None:
    own, stranger, _ = world
    strangers: dict[tuple[int, str], tuple[int, str]] = {}
    owners: dict[tuple[int, str], tuple[int, str]] = {}

    def fill(value: Any) -> Any:
        return own.ids.get(value, value) if isinstance(value, str) else value

    for number, (path, body) in enumerate(BY_BODY):
        filled = json.loads(json.dumps(body), object_hook=lambda part: {each: fill(part[each]) for each in part})
        for client, answers in ((stranger, strangers), (own.owner, owners)):
            answer = client.post(path, json=filled)
            answers[number, path] = answer.status_code, answer.text[:300]
    assert {where: answer for where, answer in strangers.items() if answer[0] != 404} == {}
    assert {where: answer for where, answer in owners.items() if answer[0] >= 300} == {}


def test_another_tenant_finds_no_stream_that_the_owner_finds(world: tuple[Furnished, httpx.Client, str]) -> None:
    own, stranger, _ = world
    thread = own.ids["threads"]
    entry = [{"payload": {"type": "chat", "text": "from afar"}}]
    requests: list[tuple[str, str, Any, dict[str, str]]] = [
        ("GET", f"threads/{thread}?offset=-1", None, {}),
        ("GET", f"threads/{thread}?offset=-1&live=long-poll", None, {}),
        ("GET", f"threads/{thread}?offset=-1&live=sse", None, {}),
        ("HEAD", f"threads/{thread}", None, {}),
        ("POST", f"threads/{thread}", entry, {}),
        ("PUT", "notes-of-a-fork", None, {"Stream-Forked-From": "notes"}),
        ("GET", "__ds/subscriptions/watch", None, {}),
        ("DELETE", "notes", None, {}),
        ("DELETE", f"threads/{thread}", None, {}),
    ]
    assert own.owner.put("/v1/stream/notes", json=[]).status_code < 300
    made = own.owner.put(
        "/v1/stream/__ds/subscriptions/watch",
        json={"type": "pull-wake", "pattern": "threads/*", "wake_stream": "wakes"},
    )
    assert made.status_code < 300, made.text

    def answer(client: httpx.Client, request: tuple[str, str, Any, dict[str, str]]) -> int:
        method, path, body, headers = request
        with client.stream(method, f"/v1/stream/{path}", json=body, headers=headers) as answer:
            return answer.status_code

    assert stranger.delete("/v1/stream/__ds/subscriptions/watch").status_code == 204, "there is none any more"
    assert {request[:2]: answer(stranger, request) for request in requests} == {each[:2]: 404 for each in requests}
    assert {request[:2]: found for request in requests if (found := answer(own.owner, request)) >= 300} == {}


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
    return [
        each for each in found if each[1].startswith(("/sandbox/{sandbox}", "/toolbox/", "/snapshots/", "/volumes/"))
    ]


def test_another_tenant_finds_nothing_by_any_route_of_the_daytona_api(
    world: tuple[Furnished, httpx.Client, str],
) -> None:
    own, _, _ = world
    made = own.owner.post("/v1/tenants", json={"name": "bolt"})
    api = "/compat/daytona"
    sandbox = own.owner.post(f"{api}/sandbox", json={}).json()["id"]
    volume = own.owner.post(f"{api}/volumes", json={"name": f"{MARK}-2"}).json()["id"]
    made_secret = own.owner.post(
        f"{api}/secret", json={"name": f"{MARK}-2", "value": "a-value-of-the-owner", "hosts": ["api.example.com"]}
    )
    assert made_secret.status_code == 201, made_secret.text
    secret = made_secret.json()["id"]
    kept = own.owner.post(f"{api}/sandbox/{sandbox}/snapshot", json={"name": MARK})
    assert kept.status_code < 300, kept.text

    def answer(client: httpx.Client, method: str, pattern: str) -> tuple[int, str]:
        path = pattern.replace("/by-name/{id:path}", f"/by-name/{MARK}-2").replace("{sandbox}", sandbox)
        path = path.replace("/secret/{id}", f"/secret/{secret}").replace("/volumes/{id:path}", f"/volumes/{volume}")
        path = re.sub(r"\{[^}]+\}", MARK, path.replace("{program}", "xvfb"))
        with client.stream(method, api + path, json={} if method in ("POST", "PUT", "PATCH") else None) as answer:
            return answer.status_code, "" if answer.status_code < 400 else json.loads(answer.read())["message"]

    def order(route: tuple[str, str]) -> tuple[bool, bool, int]:
        return route[0] == "DELETE", re.search("(stop|pause|archive)$", route[1]) is not None, -route[1].count("/")

    routes = sorted(daytona_routes(), key=order)
    headers = {"Authorization": f"Bearer {made.json()['key']['key']}"}
    with httpx.Client(base_url=own.server.url, headers=headers, timeout=240, trust_env=False) as stranger:
        strangers = {route: answer(stranger, *route) for route in routes}
    # 400 and 501: what is wrong with a request, or what nobody can do, may be said before anything is looked up.
    assert {route: told for route, told in strangers.items() if told[0] not in (400, 404, 501)} == {}
    assert own.owner.get(f"{api}/sandbox/{sandbox}").json()["state"] == "started"
    owners = {route: answer(own.owner, *route) for route in routes}
    same = {route: told for route, told in owners.items() if told == strangers[route] and told[0] not in (400, 501)}
    assert same == {}, "the owner is told the same, so that what the stranger is told proves nothing"
    assert own.owner.delete("/v1/tenants/bolt").status_code == 204
