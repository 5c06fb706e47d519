"""Logins of browsers: a link is used once, a cookie counts for pages of the server only, and ends with who made it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from tests.server.box_providers import dummies
from tests.server.conftest import api_of
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from holdfast.api.errors import Forbidden
from holdfast.server.wire.login_cookie import login_of, set_cookie
from holdfast.testing.clock import ShiftedClocks
from holdfast.testing.server import ServerProcess
from holdfast.threads.access.logins import CODE_MS, LOGIN_MS


class World:
    def __init__(self, server: ServerProcess, clocks: ShiftedClocks) -> None:
        self.server = server
        self.clocks = clocks
        self.owner = api_of(server)

    def browser(self) -> httpx.Client:
        return httpx.Client(base_url=self.server.url, timeout=240, trust_env=False)

    @property
    def own_page(self) -> dict[str, str]:
        """Headers of a request of a page of the server."""
        return {"Origin": self.server.url, "Sec-Fetch-Site": "same-origin"}

    def code(self, client: httpx.Client | None = None) -> str:
        made = (client or self.owner).post("/v1/login/links")
        assert made.status_code == 201, made.text
        return str(made.json()["path"].partition("#code=")[2])

    def log_in(self, code: str, browser: httpx.Client) -> httpx.Response:
        return browser.post("/v1/login", json={"code": code}, headers=self.own_page)

    @contextmanager
    def logged_in(self, client: httpx.Client | None = None) -> Iterator[httpx.Client]:
        with self.browser() as browser:
            answer = self.log_in(self.code(client), browser)
            assert answer.status_code == 200, answer.text
            yield browser


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("login")
    clocks = ShiftedClocks(folder / "clock")
    with ServerProcess(folder / "home", providers=dummies, clocks=clocks) as server:
        world = World(server, clocks)
        with world.owner:
            yield world


def test_a_link_logs_one_browser_in_once(world: World) -> None:
    code = world.code()
    with world.browser() as first, world.browser() as second:
        answer = world.log_in(code, first)
        assert answer.status_code == 200
        assert answer.json()["role"] == "owner"
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Path=/" in cookie
        assert "Domain" not in cookie
        assert first.get("/v1/threads").status_code == 200
        assert first.get("/v1/caller", headers=world.own_page).json()["tenant"] == "default"
        again = world.log_in(code, second)
        assert again.status_code == 401
        assert "used already" in again.json()["error"]["message"]
        assert second.get("/v1/threads").status_code == 401


def test_behind_https_the_cookie_is_bound_to_the_host(world: World) -> None:
    headers = {**world.own_page, "X-Forwarded-Proto": "https"}
    with world.browser() as browser:
        answer = browser.post("/v1/login", json={"code": world.code()}, headers=headers)
    assert answer.headers["set-cookie"].startswith("__Host-holdfast_login=hfs_")
    assert answer.headers["set-cookie"].endswith("; Secure")


def test_a_link_and_a_login_expire(world: World) -> None:
    code = world.code()
    with world.logged_in() as old, world.browser() as browser:
        world.clocks.jump(CODE_MS + 1)
        assert world.log_in(code, browser).status_code == 401
        assert old.get("/v1/threads").status_code == 200
        world.clocks.jump(LOGIN_MS)
        assert old.get("/v1/threads").status_code == 401


@pytest.mark.parametrize(
    "page",
    [
        {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://8080-b-1.localhost:1", "Sec-Fetch-Site": "same-site"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
        {},
    ],
    ids=["another site", "a page of a box", "a sandboxed page", "an old browser", "no sign of a page"],
)
def test_other_pages_cannot_use_the_cookie(world: World, page: dict[str, str]) -> None:
    with world.logged_in() as browser:
        refused = browser.post("/v1/threads", json={"title": "not mine"}, headers=page)
        assert refused.status_code == 403, refused.text
        assert browser.put("/v1/stream/notes", json=[], headers=page).status_code == 403
        assert browser.delete("/v1/login", headers=page).status_code == 403
        if page:
            assert browser.get("/v1/threads", headers=page).status_code == 403
        assert browser.post("/v1/threads", json={"title": "mine"}, headers=world.own_page).status_code == 201


def test_only_pages_of_the_server_log_in(world: World) -> None:
    """Otherwise another page could log a browser in as somebody else."""
    for headers in ({}, {"Origin": "https://evil.example"}):
        with world.browser() as browser:
            answer = browser.post("/v1/login", json={"code": world.code()}, headers=headers)
            assert answer.status_code == 403


def test_streams_and_sockets_take_the_cookie_of_own_pages(world: World) -> None:
    thread = world.owner.post("/v1/threads", json={"title": "read in a browser"}).json()["id"]
    path = f"/v1/stream/threads/{thread}"
    with world.logged_in() as browser:
        assert browser.get(f"{path}?offset=-1", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
        assert browser.get(f"{path}?offset=-1", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    url = world.server.url.replace("http", "ws", 1) + "/v1/boxes/b-none/exec"
    for origin, status in ((world.server.url, 404), ("https://evil.example", 403)):
        headers = {"Cookie": cookie, "Origin": origin}
        with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=headers) as socket:
            socket.recv(timeout=240)
        assert refused.value.response.status_code == status


def test_a_login_counts_in_its_cookie_only(world: World) -> None:
    """A browser sends its cookie to every port of the host, also to one that a box listens on."""
    thread = world.owner.post("/v1/threads", json={"title": "of the owner"}).json()["id"]
    with world.logged_in() as browser:
        stolen = browser.cookies["holdfast_login"]
        assert browser.get("/v1/threads", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
    with httpx.Client(base_url=world.server.url, headers={"Authorization": f"Bearer {stolen}"}) as thief:
        assert thief.get("/v1/threads").status_code == 401
        assert thief.post("/v1/keys", json={"name": "mine"}).status_code == 401
        assert thief.get(f"/v1/stream/threads/{thread}?offset=-1").status_code == 401
        tail = f"/v1/stream/threads/{thread}?offset=-1&live=sse&token={stolen}"
        assert thief.get(tail, headers={"Authorization": ""}).status_code == 401


def test_a_logout_and_a_revoked_login_end_at_once(world: World) -> None:
    with world.logged_in() as browser, world.logged_in() as other:
        assert browser.delete("/v1/login", headers=world.own_page).status_code == 204
        cookie_gone = not browser.cookies
        assert cookie_gone
        assert browser.get("/v1/threads").status_code == 401
        for login in world.owner.get("/v1/logins").json()["logins"]:
            assert world.owner.delete(f"/v1/logins/{login['id']}").status_code == 204
        assert other.get("/v1/threads").status_code == 401


def test_a_login_ends_with_the_key_or_the_member_behind_it(world: World) -> None:
    world.owner.put("/v1/members/kim", json={"role": "member"})
    made = world.owner.post("/v1/keys", json={"name": "laptop", "member": "kim"}).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    with httpx.Client(base_url=world.server.url, headers=headers, trust_env=False) as kim:  # noqa: SIM117
        with world.logged_in(kim) as first, world.logged_in(kim) as second:
            assert first.get("/v1/caller").json()["user"] == "kim"
            assert first.get("/v1/keys").status_code == 403
            world.owner.put("/v1/members/kim", json={"role": "viewer"})
            assert first.post("/v1/threads", json={}, headers=world.own_page).status_code == 403
            world.owner.delete(f"/v1/keys/{made['id']}")
            assert first.get("/v1/caller").status_code == 401
            world.owner.delete("/v1/members/kim")
            world.owner.put("/v1/members/kim", json={"role": "owner"})
            assert second.get("/v1/caller").status_code == 401
    world.owner.delete("/v1/members/kim")


def test_a_login_is_of_its_tenant(world: World) -> None:
    key = world.owner.post("/v1/tenants", json={"name": "acme"}).json()["key"]["key"]
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=world.server.url, headers=headers, trust_env=False) as client:
        code = world.code(client)
        with world.logged_in(client) as browser:
            assert code.startswith("hfo_acme.")
            assert browser.get("/v1/caller").json()["tenant"] == "acme"
            assert browser.get("/v1/tenants").status_code == 403
            secret = browser.cookies["holdfast_login"]
        with world.browser() as browser:
            browser.cookies["holdfast_login"] = secret.replace("hfs_acme.", "hfs_")
            assert browser.get("/v1/caller").status_code == 401
            assert world.log_in(code.replace("hfo_acme.", "hfo_"), browser).status_code == 401
    assert world.owner.delete("/v1/tenants/acme").status_code == 204


def test_the_page_has_a_strict_policy(world: World) -> None:
    with world.browser() as browser:
        answer = browser.get("/login")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert browser.get("/v1/login/methods").json() == {"oidc": None}
        assert browser.get("/login/oidc").status_code == 404


_HTTPS = "https://holdfast.example"


@pytest.mark.parametrize(
    ("public_url", "forwarded", "names"),
    [
        (None, b"http", {"holdfast_login"}),
        (None, b"https", {"__Host-holdfast_login"}),
        (_HTTPS, b"http", {"__Host-holdfast_login"}),
        ("http://holdfast.example", b"https", {"holdfast_login"}),
    ],
)
def test_a_login_counts_by_the_name_of_its_scheme_alone(
    public_url: str | None, forwarded: bytes, names: set[str]
) -> None:
    """Another host of the same domain, or somebody on the network, can plant the plain name, and log a browser in."""
    for name in ("holdfast_login", "__Host-holdfast_login"):
        headers = {b"cookie": f"{name}=hfs_planted".encode(), b"host": b"a", b"x-forwarded-proto": forwarded}
        assert (login_of(headers, "GET", public_url) is not None) == (name in names)


def test_behind_https_a_planted_login_opens_nothing(world: World) -> None:
    with world.browser() as browser:
        assert world.log_in(world.code(), browser).status_code == 200
        planted = browser.cookies["holdfast_login"]
        behind = {"x-forwarded-proto": "https"}
        thread = world.owner.post("/v1/threads", json={}).json()["id"]
        for path in ("/v1/threads", f"/v1/stream/threads/{thread}"):
            assert browser.get(path).status_code == 200
            assert browser.get(path, headers=behind).status_code == 401
        browser.cookies.clear()
        browser.cookies["__Host-holdfast_login"] = planted
        assert browser.get("/v1/threads").status_code == 401


@pytest.mark.parametrize("cookie", ["", "holdfast_login", "holdfast_login=", "holdfast_login=hf_key", "other=hfs_x"])
def test_what_is_no_login_is_ignored(cookie: str) -> None:
    assert login_of({b"cookie": cookie.encode(), b"host": b"a"}, "POST", None) is None


def test_a_cookie_of_another_page_is_refused() -> None:
    name, _, value = set_cookie("hfs_secret", secure=True, seconds=60).partition(";")[0].partition("=")
    headers = {b"cookie": f"{name}={value}".encode(), b"host": b"holdfast.example"}
    assert login_of(headers, "GET", _HTTPS) == "hfs_secret"
    assert login_of({**headers, b"origin": b"https://holdfast.example"}, "POST", _HTTPS) == "hfs_secret"
    with pytest.raises(Forbidden):
        login_of(headers, "POST", _HTTPS)
    with pytest.raises(Forbidden):
        login_of({**headers, b"sec-fetch-site": b"same-origin", b"origin": b"https://other.example"}, "POST", _HTTPS)
