"""Every kind of credential that the server gives out, tried on every way to use a thread.

The kinds are taken from the code, so that a new one fails here until the table says what it may do.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

import httpx
import pytest
from tests.attacks.conftest import TIMEOUT, Outside

from holdfast.storage.sqlite.access.api_keys import SqliteApiKeys
from holdfast.threads.access import tenant_names
from holdfast.threads.access.credentials import Access, RunScope

STREAM, SHOW, WRITE, CHANGE, OWN = "stream", "show", "write", "change", "own"
"""Read the stream; read it by the REST API; append; let others use it; delete it."""
EVERYTHING: Final = frozenset((STREAM, SHOW, WRITE, CHANGE, OWN))
MAY: Final[dict[str, frozenset[str]]] = {
    "key of an owner": EVERYTHING,
    "key of a member": EVERYTHING,
    "key of a viewer": frozenset((STREAM, SHOW)),
    "token write": frozenset((STREAM, SHOW, WRITE)),
    "token read": frozenset((STREAM, SHOW)),
    "hfl_ link": frozenset((STREAM, SHOW)),
    "hfs_ login as a bearer": frozenset(),
    "hfo_ code of a login": frozenset(),
    "hfv_ share": frozenset(),
    "claim of a subscription": frozenset(),
    "a token of another thread": frozenset(),
    "a key that was revoked": frozenset(),
    "a key of a tenant that is not there": frozenset(),
    "nothing": frozenset(),
    **{f"run {scope}": frozenset() for scope in RunScope},  # at the guest API of its box alone
}
WAYS: Final[dict[str, tuple[tuple[str, str, Any], ...]]] = {
    STREAM: (("GET", "/v1/stream/threads/{}", None), ("HEAD", "/v1/stream/threads/{}", None)),
    SHOW: (
        ("GET", "/v1/threads/{}", None),
        ("GET", "/v1/threads/{}/entries", None),
    ),
    WRITE: (
        ("POST", "/v1/stream/threads/{}", [{"payload": {"type": "chat", "text": "appended"}}]),
        ("POST", "/v1/threads/{}/chat", {"text": "said"}),
    ),
    CHANGE: (
        ("POST", "/v1/threads/{}/tokens", {"scope": "read"}),
        ("POST", "/v1/threads/{}/links", {"ttlSeconds": 600}),
        ("POST", "/v1/threads/{}/shares", {}),
    ),
    OWN: (("DELETE", "/v1/stream/threads/{}", None), ("DELETE", "/v1/threads/{}", None)),
}


class _NoKeys(SqliteApiKeys):
    def __init__(self) -> None: ...


@pytest.fixture(scope="module")
def secret(outside: Outside) -> bytes:
    return bytes.fromhex((outside.server.home / "secret").read_text().strip())


def given(outside: Outside, secret: bytes, kind: str, thread: str) -> str | None:
    """Returns a credential of a kind, as whoever has it got it."""
    what, _, name = kind.partition(" ")
    if kind.startswith("key of"):
        wanted = {"name": str(uuid.uuid4()), "role": kind.rpartition(" ")[2]}
        return str(outside.admin("POST", "/v1/keys", json=wanted)["key"])
    if what == "token":
        return outside.token(thread, name)
    if what == "run":
        return Access(_NoKeys(), secret).issue_run(thread, "r-1", 1, "b-1", RunScope(name), model="m", agent="pi").token
    if what == "hfl_":
        path = outside.admin("POST", f"/v1/threads/{thread}/links", json={"ttlSeconds": 600})["path"]
        return f"hfl_{thread}.{path.partition('#key=')[2]}"
    if what in ("hfo_", "hfs_"):
        code = str(outside.admin("POST", "/v1/login/links")["path"]).partition("#code=")[2]
        if what == "hfo_":
            return code
        own = {"origin": outside.server.url, "sec-fetch-site": "same-origin"}
        answer = httpx.post(
            f"{outside.server.url}/v1/login", json={"code": code}, headers=own, timeout=TIMEOUT, trust_env=False
        )
        assert answer.is_success, answer.text
        return next(iter(answer.cookies.values()))
    if what == "hfv_":
        path = outside.admin("POST", f"/v1/threads/{thread}/shares", json={})["path"]
        return str(path).rpartition("/")[2].rpartition("#")[2]
    match kind:
        case "claim of a subscription":
            name = f"s-{uuid.uuid4()}"
            wake = {"type": "pull-wake", "streams": [f"threads/{thread}"], "wake_stream": f"w-{name}"}
            json_type = {"content-type": "application/json"}
            outside.admin("PUT", f"/v1/stream/w-{name}", headers=json_type)
            outside.admin("PUT", f"/v1/stream/__ds/subscriptions/{name}", json=wake)
            outside.admin("POST", f"/v1/threads/{thread}/chat", json={"text": "wake up"})
            claimed = outside.admin("POST", f"/v1/stream/__ds/subscriptions/{name}/claim", json={"worker": "w"})
            return str(claimed["token"])
        case "a token of another thread":
            return outside.token(outside.thread(), "write")
        case "a key that was revoked":
            made = outside.admin("POST", "/v1/keys", json={"name": str(uuid.uuid4())})
            outside.admin("DELETE", f"/v1/keys/{made['id']}")
            return str(made["key"])
        case "a key of a tenant that is not there":
            return tenant_names.key_prefix("nobody") + "x" * 43
    return None


@pytest.mark.parametrize("kind", list(MAY))
def test_each_credential_does_with_a_thread_what_the_table_says(outside: Outside, secret: bytes, kind: str) -> None:
    for use, ways in WAYS.items():
        for method, path, body in ways:
            thread = outside.thread()
            credential = given(outside, secret, kind, thread)
            before = outside.types(thread)
            fields = {} if body is None else {"json": body}
            answer = outside.ask(method, path.format(thread), credential, **fields)
            case = (kind, use, method, path, answer.status_code, answer.text[:200])
            if use in MAY[kind]:
                assert answer.is_success, case
                continue
            assert answer.status_code in (401, 403), case
            assert outside.types(thread) == before, case


def test_no_kind_of_credential_is_missing_here() -> None:
    prefixes = {value for name, value in vars(tenant_names).items() if name.endswith("_PREFIX")}
    named = {kind.partition(" ")[0] for kind in MAY}
    assert prefixes - {tenant_names.KEY_PREFIX} <= named
    assert {f"run {scope}" for scope in RunScope} <= MAY.keys()
