"""The audit log says who changed what, for owners only, and nobody else writes it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.box_providers import dummies
from tests.server.conftest import api_of

from holdfast.api.model.models import Api
from holdfast.client import SyncClient
from holdfast.storage.sqlite import SECRET
from holdfast.storage.sqlite.secret_file import SecretFile
from holdfast.testing.server import ServerProcess
from holdfast.threads.access.credentials import AUDIT, derive
from holdfast.threads.access.seals import Origin, Seals

STREAM = f"/v1/stream/{AUDIT}"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("audit") / "home", providers=dummies) as server:
        yield server


def as_(server: ServerProcess, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False)


def recorded(owner: httpx.Client, method: str, path: str) -> dict[str, Any]:
    """Return an entry, which is there when its request was answered."""
    entries = owner.get("/v1/audit?limit=1000").json()["entries"]
    wanted = (method, path)
    return next(
        dict(each) for each in entries if (each["payload"].get("method"), each["payload"].get("path")) == wanted
    )


def until_released(client: SyncClient, session: str) -> None:
    deadline = time.monotonic() + 120
    while not client.sessions.get(session).released:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_changes_are_recorded_with_who_made_them(server: ServerProcess) -> None:
    with api_of(server) as owner:
        owner.put("/v1/members/kim", json={"role": "member"})
        made = owner.post("/v1/keys", json={"name": "laptop", "member": "kim"}).json()
        with as_(server, made["key"]) as kim:
            thread = kim.post("/v1/threads", json={}).json()["id"]
            kim.get("/v1/threads")
            kim.post(f"/v1/threads/{thread}/chat", json={"text": "a word"})
            assert kim.put("/v1/models/mine", json={}).status_code == 403
            assert kim.get("/v1/keys").status_code == 403
            kim.delete(f"/v1/stream/threads/{thread}")
        entry = recorded(owner, "POST", "/v1/threads")
        assert entry["authorId"] == "kim"
        assert entry["payload"]["key"] == made["id"]
        assert recorded(owner, "PUT", "/v1/models/mine")["payload"]["status"] == 403
        assert recorded(owner, "DELETE", f"/v1/stream/threads/{thread}")["payload"]["user"] == "kim"
        page = owner.get("/v1/audit?limit=1000").json()
        methods = [(each["payload"]["method"], each["payload"]["path"]) for each in page["entries"]]
        assert page["upToDate"]
        assert ("PUT", "/v1/members/kim") in methods
        assert [path for method, path in methods if method == "GET"] == ["/v1/keys"]
        assert not any(path.endswith("/chat") for _, path in methods)
        first = owner.get("/v1/audit?limit=1").json()
        rest = owner.get("/v1/audit", params={"limit": 1000, "since": first["nextOffset"]}).json()
        assert [*first["entries"], *rest["entries"]][: len(methods)] == page["entries"]
        owner.delete("/v1/members/kim")


def test_only_owners_read_it_and_only_the_server_writes_it(server: ServerProcess) -> None:
    with api_of(server) as owner:
        owner.post("/v1/threads", json={"id": "t-seen"})
        for method in ("POST", "PUT", "DELETE"):
            assert owner.request(method, STREAM, json=[]).status_code == 403
        token = owner.post("/v1/threads/t-seen/tokens", json={"scope": "write"}).json()["token"]
        member = owner.post("/v1/keys", json={"name": "m", "role": "member"}).json()["key"]
        forks = [{"Stream-Forked-From": each} for each in (AUDIT, STREAM, f"/{AUDIT}", "holdfast%2Faudit")]
        for credential in (token, member):
            with as_(server, credential) as other:
                assert other.get(f"{STREAM}?offset=-1").status_code == 403
                assert other.get("/v1/audit").status_code == 403
                for fork in forks:
                    assert other.put("/v1/stream/copy", headers=fork).status_code == 403


@pytest.mark.anyio
async def test_entries_have_the_seal_of_the_server(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ServerProcess(home, providers=dummies) as server, api_of(server) as owner:
        owner.post("/v1/threads", json={})
        entry = recorded(owner, "POST", "/v1/threads")
    seals = Seals(derive(await SecretFile(home / SECRET).root(), "entries of the server"))
    assert seals.origin(AUDIT, entry) is Origin.HERE
    entry["payload"]["user"] = "somebody else"
    assert seals.origin(AUDIT, entry) is Origin.UNPROVEN


def test_what_was_answered_is_recorded_also_when_the_server_is_killed_then(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with ServerProcess(home, providers=dummies) as server, api_of(server) as owner:
        for number in range(20):
            assert owner.post("/v1/keys", json={"name": f"k-{number}"}).status_code == 201
        server.kill()
    with ServerProcess(home, providers=dummies) as server, api_of(server) as owner:
        entries = owner.get("/v1/audit?limit=1000").json()["entries"]
    assert [each["payload"]["path"] for each in entries] == ["/v1/keys"] * 20


def test_each_end_of_a_session_is_recorded_once_whoever_ended_it(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", providers=dummies) as server:
        with SyncClient(server.url, api_key=server.api_key) as client:
            client.models.add("m", apis=[Api.OPENAI_CHAT], base_url="http://127.0.0.1:9", model="m")
            asked, lost = (client.sessions.wait(client.sessions.create(agent="pi", model="m").id) for _ in range(2))
            below = client.sessions.wait(client.sessions.create(agent="pi", model="m", parent=asked.id).id)
            client.sessions.terminate(asked.id, by="kim")
            client.sessions.terminate(asked.id, by="again")
            assert lost.box is not None
            client.boxes.delete(lost.box)
            client.sessions.hibernate(lost.id)  # finds that its box is gone, and ends it
            for each in (asked, lost, below):
                until_released(client, each.id)
        with api_of(server) as owner:
            entries = owner.get("/v1/audit?limit=1000").json()["entries"]
    ends = [each["payload"] for each in entries if each["payload"]["type"] == "signal.audit.session_ended"]
    told = {each["thread"]: (each["state"], each["user"], each.get("why"), each.get("parent")) for each in ends}
    cascade = f"session {asked.id}, to which it belongs, was terminated"
    assert len(ends) == len(told) == 3
    assert told[asked.id] == ("terminated", "kim", None, None)
    assert told[lost.id] == ("terminated", "server", "its box is gone", None)
    assert told[below.id] == ("terminated", "server", cascade, asked.id)
