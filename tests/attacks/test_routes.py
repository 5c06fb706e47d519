"""Names in paths that lead elsewhere, on every route of the server: refused, and never a failure of the server."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from tests.attacks.conftest import TIMEOUT, Outside

TRICKS = (
    "..", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "a%2fb", "..%5c", "%00", "%0a", "%ff%fe", "%25", "%e2%80%ae", "*",
    "a" * 5000,
)  # fmt: skip


@pytest.fixture(scope="module")
def routes(outside: Outside) -> list[tuple[str, str]]:
    """With a name in their path."""
    paths = outside.admin("GET", "/v1/openapi.json")["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods if "{" in path]
    assert len(found) > 50
    return found


def filled(routes: list[tuple[str, str]], *names: str) -> Iterator[tuple[str, str]]:
    for method, path in routes:
        for name in names:
            yield method, name.join(re.split(r"\{[^}]*\}", path))


def answers(outside: Outside, wanted: Iterator[tuple[str, str]], credential: str) -> Iterator[tuple[str, int, str]]:
    with httpx.Client(base_url=outside.server.url, timeout=TIMEOUT, trust_env=False) as client:
        for method, path in wanted:
            body: dict[str, str] | None = None if method in ("GET", "DELETE") else {}
            answer = client.request(method, path, json=body, headers={"authorization": f"Bearer {credential}"})
            yield f"{method} {path[:200]}", answer.status_code, answer.text[:200]


def test_no_name_in_a_path_takes_a_token_to_another_thread(outside: Outside, routes: list[tuple[str, str]]) -> None:
    own, other = outside.thread(), outside.thread(title="another's")
    token = outside.token(own, "write")
    ways = (other, f"{own}%2f..%2f{other}", f"..%2fthreads%2f{other}", f"{own}%00", f"{other}%20", f"%2e/{other}")
    let_in = [each for each in answers(outside, filled(routes, *ways), token) if not 400 <= each[1] < 500]
    assert let_in == []


def test_a_token_gets_nothing_of_the_routes_that_name_no_thread(outside: Outside) -> None:
    """Boxes, images, models, providers, keys: all of it takes a key, and so will what comes next."""
    token = outside.token(outside.thread(), "write")
    paths = outside.admin("GET", "/v1/openapi.json")["paths"]
    wanted = [(method.upper(), path) for path, methods in paths.items() for method in methods if "{" not in path]
    assert len(wanted) > 20
    let_in = [each[0] for each in answers(outside, iter(wanted), token) if each[1] not in (401, 403)]
    # Logging in and out is about the cookie or the code of the request: a token changes nothing there.
    login = ["DELETE /v1/login", "GET /v1/login/methods", "POST /v1/login"]
    assert sorted(let_in) == sorted([*login, "GET /health", "GET /metrics", "POST /v1/tokens/renew"])


def test_no_name_in_a_path_makes_the_server_fail(outside: Outside, routes: list[tuple[str, str]]) -> None:
    reading = [each for each in routes if each[0] == "GET"]
    assert outside.server.api_key is not None
    failed = [each for each in answers(outside, filled(reading, *TRICKS), outside.server.api_key) if each[1] >= 500]
    assert failed == []
