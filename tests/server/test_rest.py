"""The REST surface, on a real server over a socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.testing.server import ServerProcess


@pytest.fixture(scope="module")
def api(server: ServerProcess) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {server.api_key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=240) as client:
        yield client


def new_thread(api: httpx.Client, **fields: object) -> str:
    answer = api.post("/v1/threads", json=fields)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def test_a_thread_from_creation_to_deletion(api: httpx.Client) -> None:
    id = new_thread(api, title="first", labels={"team": "a"})
    assert id.startswith("t-")
    said = api.post(f"/v1/threads/{id}/chat", json={"text": "hello", "authorId": "u-1"})
    assert said.status_code == 201
    assert said.json()["entry"]["payload"] == {"type": "chat", "role": "user", "text": "hello"}
    changed = api.patch(f"/v1/threads/{id}", json={"title": "second", "labels": {"team": "b"}, "archived": True}).json()
    assert (changed["title"], changed["labels"], changed["archived"], changed["entryCount"]) == (
        "second",
        {"team": "b"},
        True,
        5,
    )
    assert changed == api.get(f"/v1/threads/{id}").json()
    assert api.delete(f"/v1/threads/{id}").status_code == 204
    gone = api.get(f"/v1/threads/{id}")
    assert gone.status_code == 404
    assert gone.json()["error"]["code"] == "not_found"
    assert api.delete(f"/v1/threads/{id}").status_code == 404


def test_a_thread_is_a_durable_stream(api: httpx.Client) -> None:
    id = new_thread(api, title="both ways")
    appended = api.post(f"/v1/stream/threads/{id}", json=[{"payload": {"type": "pi.assistant", "text": "hi"}}])
    assert appended.status_code == 204
    row = api.get(f"/v1/threads/{id}").json()
    assert (row["entryCount"], row["lastEntry"]["type"], row["lastEntry"]["text"]) == (2, "pi.assistant", "hi")
    assert row["nextOffset"] == appended.headers["stream-next-offset"]
    stream = api.get(row["stream"]).json()
    assert stream == api.get(f"/v1/threads/{id}/entries").json()["entries"]


def test_a_thread_made_as_a_stream_has_a_row(api: httpx.Client) -> None:
    made = api.put("/v1/stream/threads/made-as-a-stream", json=[{"id": "e-1", "ts": 5, "payload": {"type": "chat"}}])
    assert made.status_code == 201
    row = api.get("/v1/threads/made-as-a-stream").json()
    assert (row["title"], row["entryCount"]) == (None, 1)


def test_an_entry_stands_once(api: httpx.Client) -> None:
    id = new_thread(api)
    for _ in range(3):
        assert api.post(f"/v1/threads/{id}/chat", json={"text": "hello", "id": "e-mine"}).status_code == 201
    assert api.get(f"/v1/threads/{id}").json()["entryCount"] == 2


def test_what_is_no_entry_is_refused(api: httpx.Client) -> None:
    id = new_thread(api)
    refused = api.post(f"/v1/stream/threads/{id}", json={"text": "hello"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_entry"


def test_lists_filter_and_page(api: httpx.Client) -> None:
    parent = new_thread(api, title="parent of many")
    children = {new_thread(api, parent=parent, labels={"group": "paging"}) for _ in range(7)}
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = api.get(
            "/v1/threads", params={"parent": parent, "limit": 3, **({"cursor": cursor} if cursor else {})}
        ).json()
        assert len(page["threads"]) <= 3
        found += [thread["id"] for thread in page["threads"]]
        cursor = page["nextCursor"]
        if cursor is None:
            break
    assert len(found) == 7
    assert set(found) == children
    by_label = api.get("/v1/threads", params={"label": ["group:paging", "group"]}).json()["threads"]
    assert {thread["id"] for thread in by_label} == children
    assert api.get("/v1/threads", params={"label": "group:other"}).json()["threads"] == []
    assert api.get("/v1/threads", params={"parent": parent, "status": "running"}).json()["threads"] == []


def test_entries_are_read_by_type_since_and_limit(api: httpx.Client) -> None:
    id = new_thread(api)
    for number in range(5):
        api.post(f"/v1/threads/{id}/chat", json={"text": str(number)})
        api.post(f"/v1/stream/threads/{id}", json={"payload": {"type": f"pi.event{number}"}})
    path = f"/v1/threads/{id}/entries"
    page = api.get(path, params={"type": "chat", "limit": 2}).json()
    assert [entry["payload"]["text"] for entry in page["entries"]] == ["0", "1"]
    assert not page["upToDate"]
    rest = api.get(path, params={"type": "chat", "since": page["nextOffset"]}).json()
    assert [entry["payload"]["text"] for entry in rest["entries"]] == ["2", "3", "4"]
    assert rest["upToDate"]
    assert len(api.get(path, params={"type": ["pi.*", "signal.*"]}).json()["entries"]) == 6


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/threads", {"title": ""}, 422),
        ("POST", "/v1/threads", {"nonsense": 1}, 422),
        ("POST", "/v1/threads", {"id": "a/b"}, 422),
        ("POST", "/v1/threads", {"labels": {"a": 1}}, 422),
        ("POST", "/v1/threads", {"parent": "t-none"}, 404),
        ("GET", "/v1/threads?limit=0", None, 422),
        ("GET", "/v1/threads?status=nonsense", None, 422),
        ("GET", "/v1/threads?cursor=nonsense", None, 400),
        ("GET", "/v1/threads/t-none", None, 404),
        ("GET", "/v1/threads/t-none/entries", None, 404),
        ("POST", "/v1/threads/t-none/chat", {"text": "x"}, 404),
        ("POST", "/v1/threads/t-none/tokens", {}, 404),
        ("PATCH", "/v1/threads/t-none", {"title": "x"}, 404),
        ("DELETE", "/v1/keys/k-none", None, 404),
        ("GET", "/nothing", None, 404),
        ("PUT", "/v1/threads", None, 405),
    ],
)
def test_refusals_have_one_shape(
    api: httpx.Client, method: str, path: str, body: dict[str, object] | None, status: int
) -> None:
    answer = api.request(method, path, json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["code"]
    assert error["message"]
    assert error["requestId"] == answer.headers["x-request-id"]


def test_a_bad_since_is_refused(api: httpx.Client) -> None:
    id = new_thread(api)
    for since in ("5", "now", "0000000000000000_0000000000000003", "0000000000000000_0000000000099999"):
        assert api.get(f"/v1/threads/{id}/entries", params={"since": since}).status_code == 400


def test_tokens_open_one_thread(api: httpx.Client, server: ServerProcess) -> None:
    mine, other = new_thread(api), new_thread(api)
    issued = api.post(f"/v1/threads/{mine}/tokens", json={"scope": "write", "ttlSeconds": 60}).json()
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {issued['token']}"}) as holder:
        assert holder.post(f"/v1/threads/{mine}/chat", json={"text": "x"}).status_code == 201
        assert holder.get(f"/v1/stream/threads/{mine}").status_code == 200
        for refused in (
            holder.get(f"/v1/threads/{other}"),
            holder.get(f"/v1/stream/threads/{other}"),
            holder.get("/v1/threads"),
            holder.post("/v1/threads", json={}),
            holder.patch(f"/v1/threads/{mine}", json={"title": "x"}),
            holder.delete(f"/v1/threads/{mine}"),
            holder.get("/v1/keys"),
        ):
            assert refused.status_code == 403, refused.request.url
        renewed = holder.post("/v1/tokens/renew").json()
    assert (renewed["thread"], renewed["scope"]) == (mine, "write")
    assert renewed["expiresAt"] >= issued["expiresAt"]


def test_keys_are_created_and_revoked(api: httpx.Client, server: ServerProcess) -> None:
    created = api.post("/v1/keys", json={"name": "ci"}).json()
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {created['key']}"}) as holder:
        assert holder.get("/v1/threads").status_code == 200
        assert api.delete(f"/v1/keys/{created['id']}").status_code == 204
        refused = holder.get("/v1/threads")
        assert refused.status_code == 401
        assert "revoked" in refused.json()["error"]["message"]
    listed = {key["id"]: key for key in api.get("/v1/keys").json()["keys"]}
    assert listed[created["id"]]["revokedAt"] is not None
    assert "key" not in listed[created["id"]]


def test_health_and_metrics_ask_for_no_key(server: ServerProcess) -> None:
    health = httpx.get(f"{server.url}/health").json()
    assert health["status"] == "ok"
    metrics = httpx.get(f"{server.url}/metrics").text
    assert 'holdfast_requests_total{method="GET",status="200",surface="rest"}' in metrics
    assert "holdfast_open_tails" in metrics
    assert "holdfast_store_commits_total" in metrics
    assert "process_resident_memory_bytes" in metrics


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "0.0.0.0"},
        {"public_url": "https://holdfast.example.com"},
        {"preview_url": "https://preview.example.com"},
    ],
    ids=["everywhere", "behind a proxy", "previews"],
)
def test_metrics_want_a_key_where_other_machines_reach_the_server(tmp_path: Path, settings: dict[str, Any]) -> None:
    with ServerProcess(tmp_path / "home", **settings) as server:
        url = server.url
        assert url.startswith("http://127.0.0.1:"), "an address that this machine can open"
        with httpx.Client(base_url=url, timeout=240) as client:
            assert client.get("/health").status_code == 200
            assert client.get("/metrics").status_code == 401
            document = client.get("/v1/openapi.json", headers={"Authorization": f"Bearer {server.api_key}"}).json()
            assert {"200", "401", "403"} <= set(document["paths"]["/metrics"]["get"]["responses"])
            allowed = client.get("/metrics", headers={"Authorization": f"Bearer {server.api_key}"})
            assert "holdfast_open_tails" in allowed.text


def test_a_body_over_the_limit_is_refused(api: httpx.Client) -> None:
    id = new_thread(api)
    body = b'{"text":"' + b"x" * (16 * 1024 * 1024) + b'"}'
    answer = api.post(f"/v1/threads/{id}/chat", content=body, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "__ds/subscriptions/ack"),
        ("GET", "__ds/subscriptions/callback"),
        ("DELETE", "__ds/subscriptions/release"),
        ("DELETE", "__ds/subscriptions/s/streams/ack"),
        ("POST", "__ds/subscriptions/s/claim"),
        ("PUT", "%5f%5fds/subscriptions/s"),
        ("POST", "%5f%5fds/subscriptions/s/claim"),
        ("GET", "__ds"),
    ],
)
def test_subscriptions_are_not_open_to_strangers(server: ServerProcess, method: str, path: str) -> None:
    """Only a wake's own token does without a key, and only where it belongs."""
    body = {"type": "webhook", "pattern": "**", "webhook": {"url": "http://127.0.0.1:9/"}}
    answer = httpx.request(method, f"{server.url}/v1/stream/{path}", json=body)
    assert answer.status_code in (401, 403), answer.text


def test_a_listed_thread_is_listed_again_as_it_is_by_then(api: httpx.Client) -> None:
    id = new_thread(api, title="one", labels={"listed": "again"})

    def listed() -> dict[str, object]:
        [found] = api.get("/v1/threads", params={"label": "listed:again"}).json()["threads"]
        assert found == api.get(f"/v1/threads/{id}").json()
        return dict(found)

    assert listed()["title"] == "one"
    assert listed()["title"] == "one"
    api.patch(f"/v1/threads/{id}", json={"title": "two"}).raise_for_status()
    assert listed()["title"] == "two"
    api.post(f"/v1/threads/{id}/chat", json={"text": "hello"}).raise_for_status()
    last = listed()["lastEntry"]
    assert isinstance(last, dict)
    assert last["text"] == "hello"
