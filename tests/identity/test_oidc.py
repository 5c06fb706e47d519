"""Members log in at a real identity provider (npm `oidc-provider`), and forged answers of one are refused."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from tests.server.box_providers import dummies
from tests.server.conftest import api_of

from holdfast.testing.server import ServerProcess

HERE = Path(__file__).parent
CLIENT, SECRET = "holdfast", "a-secret-of-the-client-that-is-long-enough"
WAIT = 60


class World:
    def __init__(self, server: ServerProcess, issuer: str) -> None:
        self.server = server
        self.issuer = issuer

    def browser(self) -> httpx.Client:
        return httpx.Client(base_url=self.server.url, timeout=240, trust_env=False)

    def be(self, name: str) -> None:
        """Who sits at the keyboard."""
        httpx.get(f"{self.issuer}/as", params={"name": name}, trust_env=False).raise_for_status()

    def to_the_callback(self, browser: httpx.Client, query: str = "") -> str:
        """Log in at the provider. Returns the URL to which it sends the browser back."""
        answer = browser.get(f"/login/oidc{query}")
        for _ in range(10):
            assert answer.status_code in (302, 303), answer.text
            place = str(answer.headers["location"])
            if place.startswith(f"{self.server.url}/login/oidc/callback"):
                return place
            answer = browser.get(httpx.URL(answer.request.url).join(place))
        raise AssertionError("the provider does not come to an end")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    home = tmp_path_factory.mktemp("oidc") / "home"
    node = shutil.which("node")
    assert node is not None
    with subprocess.Popen(
        [node, "provider.mjs", CLIENT, SECRET], cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as provider:
        assert provider.stdin is not None
        assert provider.stdout is not None
        issuer = provider.stdout.readline().strip()
        settings: dict[str, Any] = {
            "oidc_issuer": issuer,
            "oidc_client_id": CLIENT,
            "oidc_client_secret": SECRET,
        }
        try:
            with ServerProcess(home, providers=dummies, **settings) as server, api_of(server) as owner:
                provider.stdin.write(f"{server.url}/login/oidc/callback\n")
                provider.stdin.flush()
                assert provider.stdout.readline().strip() == "ready"
                assert owner.put("/v1/members/kim@example.com", json={"role": "viewer"}).status_code == 200
                key = owner.post("/v1/tenants", json={"name": "acme"}).json()["key"]["key"]
                own = {"Authorization": f"Bearer {key}"}
                assert owner.put("/v1/members/lee@example.com", json={}, headers=own).status_code == 200
                yield World(server, issuer)
        finally:
            provider.terminate()
            provider.wait(WAIT)


def test_a_member_logs_in_at_the_identity_provider(world: World) -> None:
    world.be("kim")
    with world.browser() as browser:
        assert browser.get("/v1/login/methods").json() == {"oidc": "single sign-on"}
        answer = browser.get(world.to_the_callback(browser))
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        caller = browser.get("/v1/caller").json()
        assert (caller["user"], caller["role"], caller["tenant"]) == ("kim@example.com", "viewer", "default")


def test_a_member_of_another_tenant_logs_in_there(world: World) -> None:
    world.be("lee")
    with world.browser() as browser:
        assert browser.get(world.to_the_callback(browser)).status_code == 403, "not a member of the default tenant"
        assert browser.get(world.to_the_callback(browser, "?tenant=acme")).status_code == 303
        assert browser.get("/v1/caller").json()["tenant"] == "acme"
        assert browser.get(world.to_the_callback(browser, "?tenant=nobody")).status_code == 403


@pytest.mark.parametrize("name", ["stranger", "unverified"])
def test_who_is_no_member_or_not_verified_is_refused(world: World, name: str) -> None:
    with api_of(world.server) as owner:
        owner.put("/v1/members/unverified@example.com", json={"role": "owner"})
    world.be(name)
    with world.browser() as browser:
        answer = browser.get(world.to_the_callback(browser))
        assert answer.status_code == 403, answer.text
        assert browser.get("/v1/caller").status_code == 401


def test_an_answer_is_taken_in_the_browser_that_asked_and_once(world: World) -> None:
    world.be("kim")
    with world.browser() as browser, world.browser() as other:
        place = world.to_the_callback(browser)
        assert other.get(place).status_code == 401, "a login that somebody else started"
        state = parse_qs(urlsplit(place).query)["state"][0]
        assert browser.get(place.replace(state, "x" * len(state))).status_code == 401
        assert browser.get(place.replace("iss=http", "iss=https")).status_code == 401
        assert browser.get(place).status_code == 303
        assert browser.get(place).status_code == 401, "a code is used once, and the state is gone"
