"""Boxes over REST, on a real server over a socket, with dummies for boxes."""

from __future__ import annotations

import base64
import io
import re
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.box_providers import dummies, nothing_works
from tests.server.conftest import api_of
from tests.server.raw import RawClient, request

from holdfast.testing.server import ServerProcess

Make = Callable[..., str]


def run(api: httpx.Client, box: str, *argv: str, **fields: object) -> dict[str, Any]:
    answer = api.post(f"/v1/boxes/{box}/exec", json={"argv": list(argv), **fields})
    assert answer.status_code == 200, answer.text
    done: dict[str, Any] = answer.json()
    return {**done, "stdout": base64.b64decode(done["stdout"]), "stderr": base64.b64decode(done["stderr"])}


def refused(answer: httpx.Response) -> tuple[int, str]:
    error = answer.json()["error"]
    assert error["message"]
    assert error["requestId"] == answer.headers["x-request-id"]
    return answer.status_code, error["code"]


# --- life ---


def test_a_box_from_creation_to_its_tombstone(api: httpx.Client) -> None:
    spec = {"env": {"TOKEN": "s3cret-value"}, "labels": {"team": "a"}, "lifetime": "ephemeral", "idleSeconds": 3600}
    made = api.post("/v1/boxes", json={"spec": spec, "owner": {"thread": "t-1", "environment": "ci"}})
    assert made.status_code == 201
    assert (made.json()["how"], made.json()["replaced"]) == ("created", None)
    box = made.json()["box"]
    assert (box["state"], box["spec"]["env"], box["owner"]["thread"]) == ("running", ["TOKEN"], "t-1")
    assert run(api, box["id"], "sh", "-c", "echo $TOKEN")["stdout"] == b"s3cret-value\n"
    shown = [made.text, api.get(f"/v1/boxes/{box['id']}").text, api.get("/v1/boxes").text]
    assert not any("s3cret-value" in each for each in shown)
    deleted = api.delete(f"/v1/boxes/{box['id']}")
    assert deleted.json()["freed"] > 0
    tombstone = api.get(f"/v1/boxes/{box['id']}").json()
    assert (tombstone["state"], tombstone["endedWhy"]) == ("deleted", "deleted")
    assert api.delete(f"/v1/boxes/{box['id']}").json() == deleted.json()
    assert refused(api.post(f"/v1/boxes/{box['id']}/exec", json={"argv": ["true"]})) == (410, "box_gone")
    assert box["id"] not in api.get("/v1/boxes").text
    assert box["id"] in api.get("/v1/boxes", params={"all": "true"}).text


def test_the_box_of_a_key_is_found_again_and_replaced_when_its_spec_changes(api: httpx.Client) -> None:
    first = api.post("/v1/boxes", json={"key": "the-key"}).json()
    again = api.post("/v1/boxes", json={"key": "the-key"}).json()
    assert (first["how"], again["how"], again["box"]["id"]) == ("created", "resumed", first["box"]["id"])
    changed = api.post("/v1/boxes", json={"key": "the-key", "spec": {"env": {"A": "b"}}}).json()
    assert (changed["replaced"], bool(changed["why"])) == (first["box"]["id"], True)
    found = api.get("/v1/boxes", params={"key": "the-key"}).json()["boxes"]
    assert [each["id"] for each in found] == [changed["box"]["id"]]
    api.delete(f"/v1/boxes/{changed['box']['id']}")


def test_lists_filter_and_page(api: httpx.Client, make_box: Make) -> None:
    made = [make_box(spec={"labels": {"group": "paging"}}) for _ in range(3)]
    found, cursor = [], None
    while True:
        more: dict[str, str] = {} if cursor is None else {"cursor": cursor}
        page = api.get("/v1/boxes", params={"label": "group:paging", "limit": 2, **more}).json()
        found += [each["id"] for each in page["boxes"]]
        if (cursor := page["nextCursor"]) is None:
            break
    assert found == made[::-1]
    assert api.get("/v1/boxes", params={"label": "group:other"}).json()["boxes"] == []
    assert api.get("/v1/boxes", params={"label": "group:paging", "state": "stopped"}).json()["boxes"] == []


def test_a_stopped_box_keeps_its_files_and_says_that_it_is_stopped(api: httpx.Client, box: str) -> None:
    api.put(f"/v1/boxes/{box}/files", params={"path": "kept"}, content=b"kept")
    assert api.post(f"/v1/boxes/{box}/stop").json()["state"] == "stopped"
    assert refused(api.post(f"/v1/boxes/{box}/exec", json={"argv": ["true"]})) == (409, "box_stopped")
    assert api.post(f"/v1/boxes/{box}/start").json()["state"] == "running"
    assert api.get(f"/v1/boxes/{box}/files", params={"path": "kept"}).content == b"kept"


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/v1/boxes", {"spec": {"memory": 1}}, (422, "invalid_request")),
        ("POST", "/v1/boxes", {"spec": {"nonsense": 1}}, (422, "invalid_request")),
        ("POST", "/v1/boxes", {"spec": {"workdir": "/a/../b"}}, (422, "invalid_spec")),
        ("POST", "/v1/boxes", {"spec": {"provider": "elsewhere"}}, (422, "unsupported")),
        ("POST", "/v1/boxes", {"spec": {"labels": {"holdfast.key": "mine"}}}, (422, "invalid_spec")),
        ("GET", "/v1/boxes/b-none", None, (404, "box_not_found")),
        ("GET", "/v1/boxes?cursor=nonsense", None, (422, "invalid_spec")),
        ("GET", "/v1/boxes?label=nonsense", None, (422, "invalid_spec")),
        ("DELETE", "/v1/snapshots/s-none", None, (404, "snapshot_not_found")),
        ("GET", "/v1/snapshots/s-none/export", None, (404, "snapshot_not_found")),
        ("DELETE", "/v1/volumes/none", None, (404, "volume_not_found")),
        ("PATCH", "/v1/boxes/b-none", {}, (405, "method_not_allowed")),
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(
    api: httpx.Client, method: str, path: str, body: object, expected: tuple[int, str]
) -> None:
    assert refused(api.request(method, path, json=body)) == expected


def test_a_machine_that_cannot_isolate_says_so_and_serves_everything_else(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "home", providers=nothing_works) as server,
        api_of(server) as api,
    ):
        made = api.post("/v1/boxes", json={})
        assert refused(made) == (503, "cannot_isolate")
        assert made.json()["error"]["hint"] == "sysctl something"
        steps = api.get("/v1/boxes/diagnose").json()["steps"]
        assert [(step["ok"], step["nextStep"]) for step in steps] == [(False, "sysctl something")]
        assert api.post("/v1/threads", json={}).status_code == 201


def test_boxes_without_isolation_are_made_only_where_somebody_said_so(
    local_server: ServerProcess, tmp_path: Path
) -> None:
    wanted = {"spec": {"provider": "process", "network": {"mode": "open"}}}
    with api_of(local_server) as api:
        assert refused(api.post("/v1/boxes", json=wanted)) == (422, "unsupported")
    with (
        ServerProcess(tmp_path / "home", provider_settings={"allow_process_provider": True}) as server,
        api_of(server) as api,
    ):
        made = api.post("/v1/boxes", json=wanted)
        assert made.status_code == 201, made.text
        id = made.json()["box"]["id"]
        assert run(api, id, "echo", "hi")["stdout"] == b"hi\n"
        assert "without isolation" in server.read_log().lower()
        assert api.delete(f"/v1/boxes/{id}").status_code == 200


def test_boxes_outlive_the_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", providers=dummies) as server:
        with api_of(server) as api:
            id = api.post("/v1/boxes", json={"key": "kept"}).json()["box"]["id"]
        server.kill()
        server.start()
        with api_of(server) as api:
            assert api.post("/v1/boxes", json={"key": "kept"}).json()["how"] == "resumed"
            assert run(api, id, "true")["exitCode"] == 0
            counted = api.get("/metrics").text
            assert 'holdfast_boxes{state="running"} 1.0' in counted
            api.delete(f"/v1/boxes/{id}")


# --- commands ---


def test_a_command_answers_with_its_streams_and_its_exit_code(api: httpx.Client, box: str) -> None:
    stdin = base64.b64encode(b"in").decode()
    done = run(api, box, "sh", "-c", "cat; echo $A; pwd >&2; exit 7", env={"A": "b"}, cwd="/tmp", stdin=stdin)
    assert (done["exitCode"], done["stdout"]) == (7, b"inb\n")
    assert done["stderr"].endswith(b"/tmp\n")


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"argv": ["no-such-program"]}, (422, "command_not_found")),
        ({"argv": []}, (422, "invalid_request")),
        ({"argv": ["true"], "stdin": "!"}, (422, "invalid_spec")),
        ({"argv": ["sleep", "60"], "timeout": 0.1}, (504, "exec_timeout")),
        ({"argv": ["head", "-c", "9000000", "/dev/zero"]}, (413, "output_too_large")),
    ],
)
def test_a_command_that_fails_to_run_says_why(
    api: httpx.Client, box: str, command: dict[str, Any], expected: tuple[int, str]
) -> None:
    assert refused(api.post(f"/v1/boxes/{box}/exec", json=command)) == expected


def test_a_client_that_leaves_ends_its_command(api: httpx.Client, dummy_server: ServerProcess, box: str) -> None:
    body = b'{"argv": ["sh", "-c", "echo $$ > pid; exec sleep 600"]}'
    with RawClient(dummy_server.address) as client:
        headers = {"authorization": f"Bearer {dummy_server.api_key}", "content_type": "application/json"}
        client.send(request("POST", f"/v1/boxes/{box}/exec", body, **headers))
        pid = eventually(lambda: api.get(f"/v1/boxes/{box}/files", params={"path": "pid"}).read().strip())
        assert is_alive(int(pid))
    eventually(lambda: not is_alive(int(pid)))


def eventually(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if (found := look()) and not (isinstance(found, bytes) and found.startswith(b"{")):
            return found
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- files ---


def test_files_are_written_read_and_looked_at(api: httpx.Client, box: str) -> None:
    files = f"/v1/boxes/{box}/files"
    assert api.put(files, params={"path": "a/b.txt", "mode": 0o600}, content=b"one two\nthree\n").status_code == 204
    assert api.get(files, params={"path": "a/b.txt", "offset": 4, "length": 3}).content == b"two"
    assert api.get(f"{files}/stat", params={"path": "a/b.txt"}).json()["mode"] == 0o600
    assert api.post(f"{files}/chmod", json={"path": "a/b.txt", "mode": 0o644}).status_code == 204
    assert api.post(f"{files}/mkdir", json={"path": "c/d"}).status_code == 204
    assert api.post(f"{files}/move", json={"source": "a/b.txt", "target": "c/b.txt"}).status_code == 204
    listed = api.get(f"{files}/list", params={"path": "c"}).json()["files"]
    assert [(each["path"].rsplit("/", 1)[1], each["kind"]) for each in listed] == [("b.txt", "file"), ("d", "folder")]
    found = api.get(f"{files}/find", params={"pattern": "*.txt"}).json()["files"]
    assert [each["mode"] for each in found] == [0o644]
    [match] = api.get(f"{files}/search", params={"pattern": "three"}).json()["matches"]
    assert (match["line"], match["text"]) == (2, "three")
    wanted = {"pattern": "two", "replacement": "2", "paths": ["c/b.txt"]}
    assert [each["count"] for each in api.post(f"{files}/replace", json=wanted).json()["replaced"]] == [1]
    assert api.get(files, params={"path": "c/b.txt"}).content == b"one 2\nthree\n"
    assert api.delete(files, params={"path": "c", "recursive": "true"}).status_code == 204
    assert refused(api.get(files, params={"path": "c/b.txt"})) == (404, "file_not_found")
    assert refused(api.get(files, params={"path": "."})) == (409, "wrong_file_kind")


def test_an_empty_file_is_a_file(api: httpx.Client, box: str) -> None:
    assert api.put(f"/v1/boxes/{box}/files", params={"path": "empty"}, content=b"").status_code == 204
    read = api.get(f"/v1/boxes/{box}/files", params={"path": "empty"})
    assert (read.status_code, read.content) == (200, b"")


def test_a_file_may_be_larger_than_any_other_request(api: httpx.Client, box: str) -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(40):
            yield bytes([number]) * (1 << 20)

    path = {"path": "large"}
    assert api.put(f"/v1/boxes/{box}/files", params=path, content=pieces()).status_code == 204
    with api.stream("GET", f"/v1/boxes/{box}/files", params=path) as answer:
        size = sum(len(piece) for piece in answer.iter_bytes())
    assert size == 40 << 20


def test_an_upload_that_breaks_off_leaves_the_old_file(
    api: httpx.Client, dummy_server: ServerProcess, box: str
) -> None:
    path = {"path": "whole"}
    api.put(f"/v1/boxes/{box}/files", params=path, content=b"old")
    authorization = f"Bearer {dummy_server.api_key}"
    with RawClient(dummy_server.address) as client:
        target = f"/v1/boxes/{box}/files?path=whole"
        client.send(request("PUT", target, b"half", authorization=authorization, content_length="1000"))
        client.vanish()
    assert api.get(f"/v1/boxes/{box}/files", params=path).content == b"old"


def test_a_tree_goes_up_and_comes_down(api: httpx.Client, box: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("one", "folder/two"):
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    assert api.put(f"/v1/boxes/{box}/tree", params={"path": "up"}, content=packed.getvalue()).status_code == 204
    answer = api.get(f"/v1/boxes/{box}/tree", params={"path": "up"})
    assert answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        names = {each.name.removeprefix("./") for each in archive.getmembers() if each.isfile()}
    assert names == {"one", "folder/two"}
    assert refused(api.get(f"/v1/boxes/{box}/tree", params={"path": "none"})) == (404, "file_not_found")


def test_a_hostile_tree_is_refused(api: httpx.Client, box: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"), io.BytesIO(b""))
    answer = api.put(f"/v1/boxes/{box}/tree", params={"path": "up"}, content=packed.getvalue())
    assert refused(answer) == (422, "hostile_archive")


# --- snapshots and volumes ---


def test_snapshots_are_taken_restored_carried_and_forgotten(api: httpx.Client, box: str) -> None:
    api.put(f"/v1/boxes/{box}/files", params={"path": "f"}, content=b"then")
    taken = api.post(f"/v1/boxes/{box}/snapshots", json={"labels": {"why": "test"}})
    assert taken.status_code == 201
    snapshot = taken.json()
    assert snapshot["labels"]["why"] == "test"
    api.put(f"/v1/boxes/{box}/files", params={"path": "f"}, content=b"now")
    restored = api.post(f"/v1/snapshots/{snapshot['id']}/restore").json()["id"]
    forked = api.post(f"/v1/boxes/{box}/fork").json()["id"]
    assert api.get(f"/v1/boxes/{restored}/files", params={"path": "f"}).content == b"then"
    assert api.get(f"/v1/boxes/{forked}/files", params={"path": "f"}).content == b"now"
    exported = api.get(f"/v1/snapshots/{snapshot['id']}/export").content
    imported = api.post("/v1/snapshots/import", content=exported)
    assert imported.status_code == 201, imported.text
    assert refused(api.post("/v1/snapshots/import", content=b"nonsense"))[0] in (409, 422)
    listed = api.get("/v1/snapshots", params={"box": box}).json()["snapshots"]
    assert snapshot["id"] in [each["id"] for each in listed]
    for id in (restored, forked):
        api.delete(f"/v1/boxes/{id}")
    for id in (snapshot["id"], imported.json()["id"]):
        assert "freed" in api.delete(f"/v1/snapshots/{id}").json()


def test_volumes_are_made_listed_and_deleted(api: httpx.Client, make_box: Make) -> None:
    assert api.post("/v1/volumes", json={"name": "data"}).status_code == 201
    assert refused(api.post("/v1/volumes", json={"name": "data"})) == (409, "volume_exists")
    box = make_box(spec={"volumes": [{"volume": "data", "path": "/data"}]})
    assert [each["name"] for each in api.get("/v1/volumes").json()["volumes"]] == ["data"]
    assert refused(api.delete("/v1/volumes/data")) == (409, "volume_in_use")
    api.delete(f"/v1/boxes/{box}")
    assert api.delete("/v1/volumes/data").status_code == 200


def test_a_box_is_looked_at(api: httpx.Client, box: str) -> None:
    assert api.get(f"/v1/boxes/{box}/metrics").json()["processes"] == 0
    assert all(step["ok"] for step in api.get(f"/v1/boxes/{box}/ping").json()["steps"])
    assert api.get(f"/v1/boxes/{box}/diagnose").json()["steps"]
    assert api.post("/v1/boxes/prune").json()["failed"] == []


# --- who may ---


def test_every_route_asks_for_an_api_key(api: httpx.Client, dummy_server: ServerProcess) -> None:
    thread = api.post("/v1/threads", json={}).json()["id"]
    token = api.post(f"/v1/threads/{thread}/tokens", json={"scope": "write"}).json()["token"]
    paths = api.get("/v1/openapi.json").json()["paths"]
    asked = 0
    with httpx.Client(base_url=dummy_server.url, trust_env=False) as stranger:
        for template, operations in paths.items():
            if not template.startswith(("/v1/boxes", "/v1/snapshots", "/v1/volumes")):
                continue
            path = re.sub(r"\{\w+\}", "x-1", template)
            for method in operations:
                asked += 1
                nobody = stranger.request(method, path, params={"path": "x", "port": 1})
                assert refused(nobody) == (401, "unauthorized"), (method, path)
                headers = {"authorization": f"Bearer {token}"}
                other = stranger.request(method, path, params={"path": "x", "port": 1}, headers=headers)
                assert refused(other) == (403, "forbidden"), (method, path)
    assert asked >= 40
