"""What no SDK would send, and what callers may not do."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
import uuid
from pathlib import Path

import httpx
import pytest
from daytona import Daytona, Sandbox
from daytona.handle.pty_handle import PtyHandle
from tests.compat.daytona import terminals

from holdfast.compat.daytona.snapshot.build_log import BuildLog
from holdfast.compat.daytona.toolbox.sessions import Command, _Index, new_indexes
from holdfast.testing.server import ServerProcess


def _error(response: httpx.Response) -> dict[str, object]:
    """The error of an answer, which has to be in Daytona's shape."""
    told: dict[str, object] = response.json()
    assert told["statusCode"] == response.status_code
    assert {"message", "code", "source", "path", "method", "timestamp"} <= set(told)
    return told


def test_nobody_comes_in_without_a_key(daytona_server: ServerProcess, shared: Sandbox) -> None:
    places = [
        ("GET", "/sandbox"),
        ("POST", "/sandbox"),
        ("GET", f"/sandbox/{shared.id}"),
        ("DELETE", f"/sandbox/{shared.id}"),
        ("GET", f"/sandbox/{shared.id}/signing-key"),
        ("POST", f"/toolbox/{shared.id}/process/execute"),
        ("GET", f"/toolbox/{shared.id}/files/download?path=/etc/passwd"),
        ("GET", f"/toolbox/{shared.id}/files/download?path=/etc/passwd&expires=0&signature=v1_x"),
        ("GET", f"/toolbox/{shared.id}/computeruse/status"),
        ("GET", "/snapshots"),
        ("GET", "/volumes"),
        ("GET", "/secret"),
        ("GET", "/users/me"),
    ]
    base = f"{daytona_server.url}/compat/daytona"
    for authorization in ({}, {"Authorization": "Bearer hf_wrong"}, {"Authorization": "Basic abc"}):
        with httpx.Client(headers=authorization, trust_env=False) as anybody:
            for method, path in places:
                answer = anybody.request(method, base + path)
                assert answer.status_code == 401, (method, path)
                assert _error(answer)["code"] == "UNAUTHORIZED"


def test_a_thread_token_is_not_enough(daytona_server: ServerProcess, api: httpx.Client) -> None:
    thread = api.post(f"{daytona_server.url}/v1/threads", json={"title": "x"}).json()["id"]
    token = api.post(f"{daytona_server.url}/v1/threads/{thread}/tokens", json={"scope": "write"}).json()["token"]
    answer = api.get("/sandbox", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 403
    _error(answer)


def test_boxes_that_were_not_made_here_are_not_shown(daytona_server: ServerProcess, api: httpx.Client) -> None:
    box = api.post(f"{daytona_server.url}/v1/boxes", json={}).json()["box"]["id"]
    assert api.get(f"/sandbox/{box}").status_code == 404
    assert api.delete(f"/sandbox/{box}").status_code == 404
    assert api.post(f"/toolbox/{box}/process/execute", json={"command": "true"}).status_code == 404
    assert box not in [each["id"] for each in api.get("/sandbox").json()["items"]]
    assert api.delete(f"{daytona_server.url}/v1/boxes/{box}").status_code == 200


def test_the_sandbox_of_another_tenant_is_not_found(daytona_server: ServerProcess, daytona: Daytona) -> None:
    made = daytona.create()
    name = f"theirs-{uuid.uuid4()}"
    with sqlite3.connect(daytona_server.home / _database(daytona_server.home), timeout=240) as store:
        store.execute("UPDATE daytona_records SET tenant = 'other', name = ? WHERE id = ?", (name, made.id))
    headers = {"Authorization": f"Bearer {daytona_server.api_key}"}
    base = f"{daytona_server.url}/compat/daytona"
    with httpx.Client(base_url=base, headers=headers, trust_env=False) as api:
        for each in (made.id, name):
            assert api.get(f"/sandbox/{each}").status_code == 404
            assert api.delete(f"/sandbox/{each}").status_code == 404
            assert api.post(f"/sandbox/{each}/stop").status_code == 404
            assert api.get(f"/toolbox/{each}/files?path=/").status_code == 404
        assert made.id not in [item["id"] for item in api.get("/sandbox").json()["items"]]
    with sqlite3.connect(daytona_server.home / _database(daytona_server.home), timeout=240) as store:
        store.execute("UPDATE daytona_records SET tenant = 'default' WHERE id = ?", (made.id,))
    made.delete()


def _database(home: Path) -> str:
    (found,) = [path.name for path in home.glob("*.db")]
    return found


@pytest.mark.parametrize(
    "labels",
    [
        "{",
        "[]",
        '"x"',
        "null",
        '{"a": 1}',
        '{"a": {"b": "c"}}',
        "[" * 5_000,
        json.dumps({str(n): "x" for n in range(100)}),
        '{"a": "' + "x" * 20_000 + '"}',
    ],
)
def test_a_hostile_label_filter_is_refused(api: httpx.Client, labels: str) -> None:
    answer = api.get("/sandbox", params={"labels": labels})
    assert answer.status_code in (400, 414) if len(labels) > 10_000 else answer.status_code == 400
    if answer.status_code == 400 and len(labels) < 10_000:
        _error(answer)


def test_labels_are_values_and_not_patterns(api: httpx.Client) -> None:
    for labels in ({"a": "%"}, {"a' OR '1'='1": "x"}, {"a": "' OR 1=1 --"}):
        assert api.get("/sandbox", params={"labels": json.dumps(labels)}).json()["items"] == []


@pytest.mark.parametrize("cursor", ["x", "LTE6eA==", "OTk5OTk5OTk5OTk5OTk5Ong=", "é", "=" * 100])
def test_a_cursor_of_somebody_else_is_refused(api: httpx.Client, cursor: str) -> None:
    answer = api.get("/sandbox", params={"cursor": cursor})
    assert answer.status_code == 400
    _error(answer)


def test_bodies_have_a_limit(api: httpx.Client, shared: Sandbox) -> None:
    huge = b'{"command": "' + b"x" * (17 * 1024 * 1024) + b'"}'
    for path in ("/sandbox", f"/toolbox/{shared.id}/process/execute", f"/toolbox/{shared.id}/git/commit"):
        answer = api.post(path, content=huge)
        assert answer.status_code == 413, path
        _error(answer)


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b"{", b'{"name": ""}', b'{"labels": {"a": 1}}', b'{"env": {"a=b": "c"}}', b'{"cpu": -1}',
     b'{"autoStopInterval": -5}', b'{"volumes": [{"volumeId": "x", "mountPath": "relative"}]}',
     b'{"domainAllowList": "http://x y"}', b'{"networkAllowList": "everything"}', b'{"snapshot": "no-such"}'],
)  # fmt: skip
def test_a_sandbox_that_makes_no_sense_is_refused(api: httpx.Client, body: bytes) -> None:
    if not body:
        return  # an empty body asks for a sandbox like any other
    answer = api.post("/sandbox", content=body)
    assert answer.status_code in (400, 404)
    _error(answer)


@pytest.mark.parametrize("path", ["", "a\0b", "x" * 5000, "../../../../../../etc/shadow", "/proc/1/environ"])
def test_paths_stay_in_the_box(api: httpx.Client, shared: Sandbox, path: str) -> None:
    answer = api.get(f"/toolbox/{shared.id}/files/download", params={"path": path})
    assert answer.status_code in (400, 403, 404, 409)
    _error(answer)
    written = api.post(f"/toolbox/{shared.id}/files/upload-v2", params={"path": path}, content=b"x")
    assert written.status_code in (400, 403, 404, 409)


def test_uploads_that_are_cut_or_malformed_write_nothing(api: httpx.Client, shared: Sandbox) -> None:
    url = f"/toolbox/{shared.id}/files/bulk-upload"
    kind = {"content-type": "multipart/form-data; boundary=b"}
    head = b'--b\r\nContent-Disposition: form-data; name="files[0].path"\r\n\r\n/tmp/cut.txt\r\n'
    head += b'--b\r\nContent-Disposition: form-data; name="files[0].file"; filename="x"\r\n\r\n'
    for body in (b"", b"--b", head + b"half of", b"--b\r\n" + b"x" * 100_000):
        answer = api.post(url, content=body, headers=kind)
        assert answer.status_code == 400, body[:40]
        _error(answer)
    assert api.post(url, content=b"x", headers={"content-type": "text/plain"}).status_code == 400
    assert api.get(f"/toolbox/{shared.id}/files/info", params={"path": "/tmp/cut.txt"}).status_code == 404
    assert api.post(url, content=head + b"all of it\r\n--b--\r\n", headers=kind).status_code == 200
    found = api.get(f"/toolbox/{shared.id}/files/download", params={"path": "/tmp/cut.txt"})
    assert found.content == b"all of it"


_FORGE = """
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline").read().split(chr(0))
        if "forged" in words:
            os.write(os.open(f"/proc/{pid}/fd/1", os.O_WRONLY), FRAME)
            print("written")
    except OSError:
        pass
"""


@pytest.mark.parametrize("size", ["-28", "-1", "1e99", "99999999999", "true", "null", "[" * 9000])
def test_what_code_writes_into_the_output_of_a_session_harms_nobody(
    daytona_server: ServerProcess, api: httpx.Client, size: str
) -> None:
    """A frame that is as long backwards as forwards would be read for ever, by the whole server."""
    head = f'{{"n":{size},"c":"x","t":"run"}}'
    if size == "-28":
        assert len(head) + 1 == 28, "the frame takes nothing off what is left to read"
    sandbox = api.post("/sandbox", json={}).json()["id"]
    session = f"/toolbox/{sandbox}/process/session"
    assert api.post(session, json={"sessionId": "forged"}).status_code == 201
    program = _FORGE.replace("FRAME", repr(head.encode() + b"\n"))
    command = f"echo {base64.b64encode(program.encode()).decode()} | base64 -d | python3 -"
    done = api.post(f"{session}/forged/exec", json={"command": command}, timeout=240)
    found = api.get(f"{session}/forged", timeout=240)
    assert {done.status_code, found.status_code} <= {200, 410}
    assert 410 in (done.status_code, found.status_code), "nothing was written"
    assert "wrote into the output" in str(_error(found)["message"])
    assert httpx.get(f"{daytona_server.url}/health", trust_env=False, timeout=240).is_success
    assert api.delete(f"{session}/forged").status_code == 204
    api.delete(f"/sandbox/{sandbox}")


def test_a_session_remembers_a_bounded_number_of_commands() -> None:
    index = _Index()
    for number in range(30_000):
        index.add(Command(str(number), "true", number))
    assert list(index.commands)[-1] == "29999"
    assert len(index.commands) == 10_000
    for number in range(100):
        index.add(Command(f"long {number}", "x" * 1_000_000, number))
    assert sum(len(each.text) for each in index.commands.values()) <= 32 * 1024 * 1024


def test_the_log_of_a_build_has_a_beginning_of_bounded_length() -> None:
    async def read() -> list[bytes]:
        log = BuildLog()
        log.add("first")
        for _ in range(9_000):
            log.add("x" * 100_000)
        log.end()
        return [line async for line in log.lines(follow=True)]

    lines = asyncio.run(read())
    assert lines[:2] == [b"first\n", b"x" * 4096 + b"\n"]
    assert sum(map(len, lines)) <= 1_000_000


def test_a_server_remembers_a_bounded_amount_of_what_all_sessions_ran() -> None:
    indexes = new_indexes()
    for number in range(20):
        index = indexes.get_or_make(str(number), _Index)
        for command in range(10):
            index.add(Command(f"{number} {command}", "x" * 1_000_000, command))
    indexes.get_or_make("one more", _Index)
    kept = [each for number in range(20) if (each := indexes.get(str(number))) is not None]
    assert kept
    assert sum(each.characters for each in kept) <= 64 * 1024 * 1024
    assert indexes.get("19") is kept[-1], "what was used last is kept"


def test_sessions_with_too_much_text_for_one_answer_are_read_one_by_one(api: httpx.Client) -> None:
    sandbox = api.post("/sandbox", json={}).json()["id"]
    sessions = f"/toolbox/{sandbox}/process/session"
    long = ": " + "x" * (4 * 1024 * 1024 - 2)
    for name in ("one", "two"):
        assert api.post(sessions, json={"sessionId": name}).status_code == 201
        for _ in range(5):
            ran = api.post(f"{sessions}/{name}/exec", json={"command": long}, timeout=240)
            assert ran.status_code == 200, ran.text[:1000]
    listed = api.get(sessions, timeout=240)
    assert listed.status_code == 413
    assert "ask for each session" in str(_error(listed)["message"])
    assert len(api.get(f"{sessions}/one", timeout=240).json()["commands"]) == 5
    assert api.delete(f"{sessions}/two").status_code == 204
    assert [each["sessionId"] for each in api.get(sessions, timeout=240).json()] == ["one"]
    api.delete(f"/sandbox/{sandbox}")


def test_numbers_out_of_range_are_refused(api: httpx.Client, shared: Sandbox) -> None:
    for method, path in (
        ("GET", "/sandbox?limit=0"),
        ("GET", "/sandbox?limit=1000000"),
        ("GET", "/sandbox?states=nonsense"),
        ("GET", "/sandbox?createdAtAfter=yesterday"),
        ("GET", "/snapshots?page=0"),
        ("POST", f"/sandbox/{shared.id}/autostop/-1"),
        ("POST", f"/sandbox/{shared.id}/autostop/99999999999999999999"),
        ("POST", f"/sandbox/{shared.id}/public/maybe"),
        ("GET", f"/sandbox/{shared.id}/ports/0/preview-url"),
        ("GET", f"/sandbox/{shared.id}/ports/65536/preview-url"),
        ("GET", f"/toolbox/{shared.id}/port/x/in-use"),
        ("GET", f"/toolbox/{shared.id}/files?path=/&depth=0"),
    ):
        answer = api.request(method, path)
        assert answer.status_code == 400, (method, path, answer.text)
        _error(answer)


def test_what_is_not_there_is_told_in_daytonas_shape(api: httpx.Client, shared: Sandbox) -> None:
    assert _error(api.get("/no/such/thing"))["source"] == "DAYTONA_API"
    assert _error(api.get(f"/toolbox/{shared.id}/no/such"))["source"] == "DAYTONA_DAEMON"
    assert _error(api.patch(f"/sandbox/{shared.id}"))["statusCode"] == 404


def test_without_the_option_there_is_no_such_api(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home") as server:
        answer = httpx.get(f"{server.url}/compat/daytona/config", trust_env=False, timeout=240)
        assert answer.status_code == 404


def test_who_connects_to_a_terminal_gets_the_latest_of_its_output_only(sandbox: Sandbox) -> None:
    name = f"much-{uuid.uuid4()}"
    handle = terminals.create(sandbox.process, name)
    handle.send_input("stty -echo -opost; head -c 9000000 /dev/zero | tr '\\0' x; echo; echo th''e end; read line\n")
    assert len(_read_until(handle, b"the end")) > 9_000_000
    again = terminals.connect(sandbox.process, name)
    assert len(_read_until(again, b"the end")) < 2_000_000
    again.kill()
    for each in (handle, again):
        each.disconnect()


def _read_until(handle: PtyHandle, wanted: bytes) -> bytes:
    seen = bytearray()
    for data in handle:
        seen += data
        if wanted in seen[-len(data) - len(wanted) :]:
            return bytes(seen)
    raise AssertionError(f"the terminal ended after {len(seen)} bytes, without {wanted!r}")
