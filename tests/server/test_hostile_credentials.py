"""Who has no credential, or another one, gets nothing, is told why, and leaves no secret in the log."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import jwt
import pytest

from holdfast.testing.server import ServerProcess

TIMEOUT = 240.0
MINE, OTHER = "t-mine", "t-other"
ENTRY = {"payload": {"type": "chat", "text": "hello"}}


class Keys:
    """Everything secret that the tests send, none of which may be in the server's log."""

    def __init__(self, server: ServerProcess) -> None:
        self.url = server.url
        self.admin = server.api_key or ""
        self.sent = {self.admin}

    def ask(self, method: str, path: str, credential: str | None = None, **fields: Any) -> httpx.Response:
        headers = fields.pop("headers", {})
        if credential is not None:
            self.sent.add(credential)
            headers = {"authorization": f"Bearer {credential}", **headers}
        return httpx.request(method, self.url + path, headers=headers, timeout=TIMEOUT, **fields)

    def token(self, scope: str, thread: str = MINE, seconds: int = 600) -> str:
        body = {"scope": scope, "ttlSeconds": seconds}
        issued = self.ask("POST", f"/v1/threads/{thread}/tokens", self.admin, json=body)
        assert issued.status_code == 201
        token: str = issued.json()["token"]
        self.sent.add(token)
        return token


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    home = tmp_path_factory.mktemp("credentials") / "home"
    with ServerProcess(home, log_level="debug", long_poll_timeout=0.2) as server:
        keys = Keys(server)
        for thread in (MINE, OTHER):
            assert keys.ask("POST", "/v1/threads", keys.admin, json={"id": thread}).status_code == 201
        assert keys.ask("PUT", "/v1/stream/other", keys.admin, json=[]).status_code == 201
        yield keys
        log = server.read_log()
    assert '"level": "debug"' in log
    leaked = [secret for secret in keys.sent if len(secret) > 8 and secret in log]
    assert not leaked, f"{len(leaked)} of {len(keys.sent)} secrets are in the log"


def refusal(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert error["requestId"] == response.headers["x-request-id"]
    return response.status_code, error["message"]


EVERYTHING = [
    ("GET", f"/v1/stream/threads/{MINE}"),
    ("GET", f"/v1/stream/threads/{MINE}?offset=-1&live=sse"),
    ("GET", f"/v1/stream/threads/{MINE}?offset=now&live=long-poll"),
    ("GET", "/v1/stream/none"),
    ("POST", f"/v1/stream/threads/{MINE}"),
    ("PUT", "/v1/stream/new"),
    ("PUT", f"/v1/stream/threads/{MINE}"),
    ("DELETE", f"/v1/stream/threads/{MINE}"),
    ("PATCH", f"/v1/stream/threads/{MINE}"),
    ("GET", "/v1/stream/__ds/subscriptions/x"),
    ("PUT", "/v1/stream/__ds/subscriptions/x"),
    ("GET", "/v1/threads"),
    ("POST", "/v1/threads"),
    ("GET", f"/v1/threads/{MINE}"),
    ("PATCH", f"/v1/threads/{MINE}"),
    ("DELETE", f"/v1/threads/{MINE}"),
    ("POST", f"/v1/threads/{MINE}/chat"),
    ("GET", f"/v1/threads/{MINE}/entries"),
    ("POST", f"/v1/threads/{MINE}/tokens"),
    ("POST", "/v1/tokens/renew"),
    ("GET", "/v1/keys"),
    ("POST", "/v1/keys"),
    ("DELETE", "/v1/keys/k-1"),
]


def body_for(method: str) -> dict[str, Any]:
    return {"json": ENTRY} if method in ("POST", "PUT", "PATCH") else {}


@pytest.mark.parametrize(("method", "path"), EVERYTHING)
def test_without_a_credential_nothing_is_open(keys: Keys, method: str, path: str) -> None:
    response = keys.ask(method, path, **body_for(method))
    status, message = refusal(response)
    assert (status, response.headers["www-authenticate"]) == (401, 'Bearer realm="holdfast"')
    assert "API key" in message


def test_without_a_credential_heads_tell_nothing(keys: Keys) -> None:
    for path in (f"/v1/stream/threads/{MINE}", "/v1/stream/none"):
        response = keys.ask("HEAD", path)
        assert response.status_code == 401
        assert "stream-next-offset" not in response.headers


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    now = int(time.time())
    return {
        "iss": "holdfast",
        "sub": MINE,
        "ten": "default",
        "scope": "write",
        "iat": now,
        "exp": now + 600,
        "first": now,
        **changes,
    }


def forgeries(token: str) -> dict[str, str]:
    """Tokens made from a good one of reading, in the hope of writing, or out of nothing."""
    head, body, signature = token.split(".")
    written = json.loads(base64.urlsafe_b64decode(body + "==")) | {"scope": "write"}
    return {
        "another payload": f"{head}.{encoded(written)}.{signature}",
        "no signature": f"{head}.{body}.",
        "half a signature": f"{head}.{body}.{signature[:20]}",
        "another signature": f"{head}.{body}.{signature[:-4]}AAAA",
        "algorithm none": jwt.encode(claims(), "", algorithm="none"),
        "algorithm None": f"{encoded({'alg': 'None', 'typ': 'JWT'})}.{encoded(claims())}.",
        "algorithm none, signed": f"{encoded({'alg': 'none', 'typ': 'JWT'})}.{body}.{signature}",
        "a key of zeros": jwt.encode(claims(), "\0" * 32, algorithm="HS256"),
        "another key": jwt.encode(claims(), "k" * 32, algorithm="HS256"),
        "another hash": jwt.encode(claims(), "k" * 64, algorithm="HS512"),
        "no claims": jwt.encode({}, "k" * 32, algorithm="HS256"),
        "no JSON": "e30.bm90IGpzb24.c2ln",
        "dots": "..",
        "one dot": "a.b",
        "spaces": "a b c",
        "an unknown key": "hf_" + "A" * 43,
        "the start of a key": "hf_",
        "no ASCII": "h\xe9llo-w\xf6rld",
        "long": "eyJ" + "x" * 30_000,
    }


@pytest.mark.parametrize("name", list(forgeries(f"{encoded({})}.{encoded({})}.x")))
def test_forged_credentials_are_refused(keys: Keys, name: str) -> None:
    forged = forgeries(keys.token("read"))[name]
    keys.sent.add(forged)
    headers = {"authorization": f"Bearer {forged}".encode("latin-1")}
    for method, path in EVERYTHING:
        response = keys.ask(method, path, headers=headers, **body_for(method))
        status, _ = refusal(response)
        assert status == 401, (method, path)


@pytest.mark.parametrize("value", ["", "Bearer", "Basic dTpw", "Token {key}", "{key}", "Bearer: {key}"])
def test_other_ways_to_authorize_are_none(keys: Keys, value: str) -> None:
    headers = {"authorization": value.format(key=keys.admin)}
    assert keys.ask("GET", "/v1/threads", headers=headers).status_code == 401
    assert keys.ask("GET", f"/v1/stream/threads/{MINE}", headers=headers).status_code == 401


def test_an_expired_token_is_refused_with_the_reason(keys: Keys) -> None:
    token = keys.token("write", seconds=1)
    deadline = time.monotonic() + TIMEOUT
    while (response := keys.ask("GET", f"/v1/stream/threads/{MINE}", token)).status_code == 200:
        assert time.monotonic() < deadline
    for method, path in EVERYTHING:
        response = keys.ask(method, path, token, **body_for(method))
        status, message = refusal(response)
        assert (status, "expired" in message) == (401, True), (method, path)


def test_a_revoked_key_is_refused_with_the_reason(keys: Keys) -> None:
    made = keys.ask("POST", "/v1/keys", keys.admin, json={"name": "short-lived"}).json()
    assert keys.ask("GET", "/v1/threads", made["key"]).status_code == 200
    assert keys.ask("DELETE", f"/v1/keys/{made['id']}", keys.admin).status_code == 204
    for path in ("/v1/threads", f"/v1/stream/threads/{MINE}"):
        status, message = refusal(keys.ask("GET", path, made["key"]))
        assert (status, "revoked" in message) == (401, True)


@pytest.mark.parametrize("scope", ["read", "write"])
def test_a_token_opens_its_own_thread(keys: Keys, scope: str) -> None:
    token = keys.token(scope)
    for path in (f"/v1/stream/threads/{MINE}", f"/v1/threads/{MINE}", f"/v1/threads/{MINE}/entries"):
        assert keys.ask("GET", path, token).status_code == 200, path
    assert keys.ask("HEAD", f"/v1/stream/threads/{MINE}", token).status_code == 200
    assert keys.ask("POST", "/v1/tokens/renew", token).status_code == 200
    written = 204 if scope == "write" else 403
    assert keys.ask("POST", f"/v1/stream/threads/{MINE}", token, json=ENTRY).status_code == written
    said = 201 if scope == "write" else 403
    assert keys.ask("POST", f"/v1/threads/{MINE}/chat", token, json={"text": "hello"}).status_code == said


@pytest.mark.parametrize("scope", ["read", "write"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/stream/threads/{OTHER}"),
        ("GET", f"/v1/stream/threads/{OTHER}?offset=-1&live=sse"),
        ("GET", f"/v1/stream/threads%2F{OTHER}"),
        ("POST", f"/v1/stream/threads/{OTHER}"),
        ("GET", "/v1/stream/other"),
        ("POST", "/v1/stream/other"),
        ("GET", f"/v1/stream/{MINE}"),
        ("GET", "/v1/stream/threads/t-none"),
        ("PUT", f"/v1/stream/threads/{MINE}"),
        ("PUT", "/v1/stream/threads/t-new"),
        ("DELETE", f"/v1/stream/threads/{MINE}"),
        ("GET", "/v1/stream/__ds/subscriptions/x"),
        ("PUT", "/v1/stream/__ds/subscriptions/x"),
        ("DELETE", "/v1/stream/__ds/subscriptions/x"),
        ("GET", "/v1/threads"),
        ("POST", "/v1/threads"),
        ("GET", f"/v1/threads/{OTHER}"),
        ("GET", f"/v1/threads/{OTHER}/entries"),
        ("POST", f"/v1/threads/{OTHER}/chat"),
        ("PATCH", f"/v1/threads/{MINE}"),
        ("DELETE", f"/v1/threads/{MINE}"),
        ("POST", f"/v1/threads/{MINE}/tokens"),
        ("GET", "/v1/keys"),
        ("POST", "/v1/keys"),
        ("DELETE", "/v1/keys/k-1"),
    ],
)
def test_a_token_opens_nothing_else(keys: Keys, method: str, path: str, scope: str) -> None:
    bodies = {
        "/v1/threads": {"title": "x"},
        f"/v1/threads/{OTHER}/chat": {"text": "x"},
        f"/v1/threads/{MINE}": {"title": "x"},
        f"/v1/threads/{MINE}/tokens": {"scope": "write"},
        "/v1/keys": {"name": "x"},
    }
    fields = {"json": bodies.get(path, ENTRY)} if method in ("POST", "PUT", "PATCH") else {}
    status, message = refusal(keys.ask(method, path, keys.token(scope), **fields))
    assert status == 403
    assert "token" in message


def test_a_token_that_was_refused_has_changed_nothing(keys: Keys) -> None:
    before = keys.ask("GET", f"/v1/stream/threads/{OTHER}", keys.admin).json()
    token = keys.token("write")
    for method in ("POST", "PUT", "DELETE"):
        assert keys.ask(method, f"/v1/stream/threads/{OTHER}", token, **body_for(method)).status_code == 403
    assert keys.ask("GET", f"/v1/stream/threads/{OTHER}", keys.admin).json() == before


# Tokens in URLs


def live_status(keys: Keys, path: str) -> int:
    with httpx.stream("GET", keys.url + path, timeout=TIMEOUT) as response:
        return response.status_code


@pytest.mark.parametrize("scope", ["read", "write"])
def test_a_token_in_the_url_opens_a_live_read(keys: Keys, scope: str) -> None:
    token = keys.token(scope)
    assert live_status(keys, f"/v1/stream/threads/{MINE}?offset=-1&live=sse&token={token}") == 200
    assert live_status(keys, f"/v1/stream/threads/{MINE}?token={token}&live=sse&offset=now") == 200
    assert live_status(keys, f"/v1/stream/threads/{OTHER}?offset=-1&live=sse&token={token}") == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"/v1/stream/threads/{MINE}?token="),
        ("GET", f"/v1/stream/threads/{MINE}?offset=-1&live=long-poll&token="),
        ("GET", f"/v1/stream/threads/{MINE}?offset=-1&x=live=sse&token="),
        ("GET", f"/v1/stream/threads/{MINE}?offset=-1&relive=sse&token="),
        ("POST", f"/v1/stream/threads/{MINE}?live=sse&offset=-1&token="),
        ("PUT", "/v1/stream/new?live=sse&offset=-1&token="),
        ("DELETE", f"/v1/stream/threads/{MINE}?live=sse&offset=-1&token="),
        ("GET", f"/v1/threads/{MINE}?live=sse&token="),
        ("GET", "/v1/threads?token="),
        ("POST", "/v1/tokens/renew?token="),
        ("GET", f"/v1/stream/threads/{MINE}?access_token="),
        ("GET", f"/v1/stream/threads/{MINE}?offset=-1&live=sse&access_token="),
    ],
)
def test_a_token_in_the_url_opens_nothing_else(keys: Keys, method: str, path: str) -> None:
    for credential in (keys.token("write"), keys.admin):
        status, _ = refusal(keys.ask(method, path + credential, **body_for(method)))
        assert status == 401


@pytest.mark.parametrize(
    "path",
    [
        "/v1/stream/threads/..?live=sse&offset=-1&token={}",
        "/v1/stream/threads/t-none?live=sse&offset=-1&token={}",
        "/v1/stream/threads/t-mine?live=sse&offset=bad&token={}",
        "/v1/stream/threads/t-mine?live=sse&offset=-1&token=x{}",
        "/v1/stream/threads/t-mine?live=sse&offset=-1&token={}&token={}",
        "/v1/stream/threads/t-mine?live=sse&offset=-1&TOKEN={}",
        "/v1/stream/{}",
        "/v1/threads/{}",
        "/nowhere/{}?token={}",
        "/v1/threads?cursor={}",
        "/v1/stream/x?token={}" + "x" * 20_000,
    ],
)
def test_no_answer_and_no_log_line_repeats_a_token(keys: Keys, path: str) -> None:
    """The log is looked at when all tests have run."""
    token = keys.token("read")
    with httpx.stream("GET", keys.url + path.replace("{}", token), timeout=TIMEOUT) as response:
        if response.status_code != 200:
            in_path = "{}" in path.partition("?")[0]
            assert in_path or token not in response.read().decode()


def test_health_and_metrics_ask_for_nothing_and_tell_no_secret(keys: Keys) -> None:
    for path in ("/health", "/metrics", "/v1/openapi.json"):
        response = keys.ask("GET", path)
        assert response.status_code == 200
        assert not [secret for secret in keys.sent if len(secret) > 8 and secret in response.text]
