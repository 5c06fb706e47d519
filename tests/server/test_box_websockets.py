"""WebSockets of boxes, on a real server over a socket."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.conftest import api_of
from tests.server.raw import RawClient, request
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from holdfast.testing.server import ServerProcess

TIMEOUT = 240.0
STDIN, STDOUT, STDERR, END = b"\x00", b"\x01", b"\x02", b"\x04"
SOCKETS = ["exec", "channel", "processes/p-1/attach", "connect/80"]


def socket(server: ServerProcess, path: str, **headers: str) -> ClientConnection:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if server.api_key is not None:
        named.setdefault("authorization", f"Bearer {server.api_key}")
    url = f"ws{server.url.removeprefix('http')}/v1/boxes/{path}"
    return connect(url, additional_headers=named, proxy=None, compression=None, open_timeout=TIMEOUT, max_size=1 << 20)


def command(*argv: str, **more: object) -> str:
    return json.dumps({"argv": list(argv), **more})


def frames(opened: ClientConnection) -> Iterator[bytes | dict[str, Any]]:
    """All frames until the server closes, text ones as what they say."""
    while True:
        try:
            frame = opened.recv(timeout=TIMEOUT)
        except ConnectionClosed:
            return
        yield json.loads(frame) if isinstance(frame, str) else frame


def said(opened: ClientConnection) -> tuple[bytes, bytes, dict[str, Any]]:
    """Stdout, stderr, and how it ended."""
    streams, last = {STDOUT: b"", STDERR: b""}, {}
    for frame in frames(opened):
        if isinstance(frame, dict):
            last = frame
        else:
            streams[frame[:1]] += frame[1:]
    return streams[STDOUT], streams[STDERR], last


def close_code(opened: ClientConnection) -> int:
    assert opened.protocol.close_rcvd is not None
    return opened.protocol.close_rcvd.code


@pytest.fixture(params=["dummy", "local"])
def place(request: pytest.FixtureRequest) -> tuple[ServerProcess, str]:
    """A server and a box of its, of each kind."""
    kind = request.param
    if kind == "dummy":
        return request.getfixturevalue("dummy_server"), request.getfixturevalue("box")
    return request.getfixturevalue("local_server"), request.getfixturevalue("local_box")


Place = tuple[ServerProcess, str]


# --- who may ---


@pytest.mark.parametrize("path", SOCKETS)
def test_a_stranger_is_refused_before_the_socket_opens(dummy_server: ServerProcess, box: str, path: str) -> None:
    with api_of(dummy_server) as api:
        thread = api.post("/v1/threads", json={}).json()["id"]
        token = api.post(f"/v1/threads/{thread}/tokens", json={"scope": "write"}).json()["token"]
    for authorization, status in (("", 401), ("Bearer hf_wrong", 401), (f"Bearer {token}", 403)):
        with pytest.raises(InvalidStatus) as refused:
            socket(dummy_server, f"{box}/{path}", authorization=authorization)
        assert refused.value.response.status_code == status
        error = json.loads(refused.value.response.body or b"")["error"]
        assert error["requestId"] == refused.value.response.headers["x-request-id"]


@pytest.mark.parametrize("path", SOCKETS)
def test_a_box_that_is_not_there_is_an_answer_to_the_handshake(dummy_server: ServerProcess, path: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        socket(dummy_server, f"b-none/{path}")
    assert refused.value.response.status_code == 404
    assert json.loads(refused.value.response.body or b"")["error"]["code"] == "box_not_found"


@pytest.mark.parametrize("path", SOCKETS)
def test_an_open_server_refuses_pages_of_others(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    home = tmp_path_factory.mktemp("open") / "home"
    with ServerProcess(home, auth=False) as server:
        for origin in ("https://evil.example", f"http://3000-b-x.localhost:{server.address[1]}", "null"):
            with pytest.raises(InvalidStatus) as refused:
                socket(server, f"b-none/{path}", origin=origin)
            assert refused.value.response.status_code == 403
        with pytest.raises(InvalidStatus) as refused:
            socket(server, f"b-none/{path}", origin=server.url)
        assert refused.value.response.status_code == 404


def test_what_is_no_socket_is_an_answer_to_the_handshake(dummy_server: ServerProcess, box: str) -> None:
    for path, status in ((f"{box}/connect/1", 502), (f"{box}/connect/0", 400), (f"{box}/processes/p-1/attach", 404)):
        with pytest.raises(InvalidStatus) as refused:
            socket(dummy_server, path)
        assert refused.value.response.status_code == status, path
    with pytest.raises(InvalidStatus) as refused:
        socket(dummy_server, f"{box}/nonsense")
    assert refused.value.response.status_code in (403, 404)


def test_an_upgrade_waits_for_the_answers_before_it(dummy_server: ServerProcess, box: str) -> None:
    upgrade = {"upgrade": "websocket", "connection": "upgrade", "sec_websocket_key": "x" * 22 + "=="}
    with RawClient(dummy_server.address) as client:
        slow = b'{"argv": ["sleep", "0.2"]}'
        headers = {"authorization": f"Bearer {dummy_server.api_key}"}
        first = request("POST", f"/v1/boxes/{box}/exec", slow, content_type="application/json", **headers)
        client.send(first + request("GET", f"/v1/boxes/{box}/exec", **headers, **upgrade))
        assert client.answer().status == 200
        refused = client.answer()
        assert (refused.status, refused.error) == (400, "bad_request")


def test_a_connection_that_was_used_before_can_be_upgraded(dummy_server: ServerProcess, box: str) -> None:
    headers = {"authorization": f"Bearer {dummy_server.api_key}"}
    upgrade = {
        "upgrade": "websocket",
        "connection": "upgrade",
        "sec_websocket_key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec_websocket_version": "13",
    }
    with RawClient(dummy_server.address) as client:
        client.send(request("PUT", f"/v1/stream/upgraded-{box}", b"[]", content_type="application/json", **headers))
        assert client.answer().status == 201
        client.send(request("GET", f"/v1/boxes/{box}/exec", **headers, **upgrade))
        status, answered = client.head()
        assert (status, answered["sec-websocket-accept"]) == (101, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")


# --- exec ---


def test_a_command_streams_and_says_how_it_ended(place: Place) -> None:
    server, box = place
    with socket(server, f"{box}/exec") as opened:
        opened.send(command("sh", "-c", "cat; echo $A >&2; exit 5", env={"A": "b"}, stdin="aW4="))
        assert said(opened) == (b"in", b"b\n", {"exit": 5})
        assert close_code(opened) == 1000


def test_stdin_comes_in_frames(place: Place) -> None:
    server, box = place
    with socket(server, f"{box}/exec") as opened:
        opened.send(command("cat"))
        opened.send(STDIN + b"one ")
        opened.send(STDIN + b"two")
        opened.send(END)
        assert said(opened) == (b"one two", b"", {"exit": 0})


def test_stdin_that_takes_its_time_is_passed_on_as_it_comes(local_server: ServerProcess, local_box: str) -> None:
    with socket(local_server, f"{local_box}/exec") as opened:
        opened.send(command("cat"))
        for word in (b"one", b"two"):
            opened.send(STDIN + word)
            assert opened.recv(timeout=TIMEOUT) == STDOUT + word
        opened.send(END)
        assert said(opened) == (b"", b"", {"exit": 0})


def test_a_command_that_cannot_run_says_why(place: Place) -> None:
    server, box = place
    for wanted, code in (
        (command("no-such-program", stdin=""), "command_not_found"),
        (command("sleep", "60", timeout=0.1, stdin=""), "exec_timeout"),
        (command(), "invalid_spec"),
        ("nonsense", "invalid_spec"),
    ):
        with socket(server, f"{box}/exec") as opened:
            opened.send(wanted)
            assert said(opened)[2]["error"]["code"] == code


@pytest.mark.parametrize("frame", [b"\x09nonsense", b"", "text"])
def test_frames_that_make_no_sense_end_the_socket(dummy_server: ServerProcess, box: str, frame: bytes | str) -> None:
    with socket(dummy_server, f"{box}/exec") as opened:
        opened.send(command("cat"))
        opened.send(frame)
        assert said(opened)[2]["error"]["code"] == "invalid_request"
        assert close_code(opened) == 1008


def test_a_message_that_is_too_large_ends_the_socket(dummy_server: ServerProcess, box: str) -> None:
    with socket(dummy_server, f"{box}/exec") as opened:
        opened.send(command("cat"))
        opened.send(STDIN + bytes(2 << 20))
        list(frames(opened))
        assert close_code(opened) == 1009


def test_64_megabytes_stream_through_in_flat_memory(place: Place) -> None:
    server, box = place
    with socket(server, f"{box}/exec") as opened:
        opened.send(command("true", stdin=""))
        said(opened)
    before = memory(server.pid)
    size = 0
    with socket(server, f"{box}/exec") as opened:
        opened.send(command("head", "-c", str(64 << 20), "/dev/zero", stdin=""))
        for frame in frames(opened):
            if isinstance(frame, dict):
                assert frame == {"exit": 0}
            else:
                size += len(frame) - 1
    assert size == 64 << 20
    assert memory(server.pid) - before < 24 << 20


def test_output_that_nobody_reads_waits_in_the_box(place: Place) -> None:
    server, box = place
    with socket(server, f"{box}/exec") as opened:
        opened.send(command("true", stdin=""))
        said(opened)
    before = memory(server.pid)
    with socket(server, f"{box}/exec") as opened:
        opened.send(command("sh", "-c", "head -c 268435456 /dev/zero; echo done > done", stdin=""))
        opened.recv(timeout=TIMEOUT)
        settled(lambda: memory(server.pid))
        assert memory(server.pid) - before < 32 << 20
        with api_of(server) as api:
            assert api.get(f"/v1/boxes/{box}/files", params={"path": "done"}).status_code == 404


def test_closing_the_socket_kills_the_command(place: Place) -> None:
    server, box = place
    with socket(server, f"{box}/exec") as opened, api_of(server) as api:
        opened.send(command("sh", "-c", "echo started; sleep 600; echo", stdin=""))
        assert opened.recv(timeout=TIMEOUT) == STDOUT + b"started\n"
        assert api.get(f"/v1/boxes/{box}/metrics").json()["processes"] > 0
    with api_of(server) as api:
        eventually(lambda: api.get(f"/v1/boxes/{box}/metrics").json()["processes"] == 0)


def test_a_server_that_stops_does_not_wait_for_sockets(tmp_path: Path) -> None:
    from tests.server.box_providers import dummies

    with ServerProcess(tmp_path / "home", providers=dummies) as server:
        with api_of(server) as api:
            box = api.post("/v1/boxes", json={}).json()["box"]["id"]
        with socket(server, f"{box}/exec") as opened:
            opened.send(command("sh", "-c", "echo started; sleep 600", stdin=""))
            assert opened.recv(timeout=TIMEOUT) == STDOUT + b"started\n"
            server.stop()
            assert "graceful shutdown exceeded" not in server.read_log()
            list(frames(opened))
            assert close_code(opened) == 1012


# --- channels, ports and terminals ---


def test_a_channel_talks_to_a_process(place: Place) -> None:
    server, box = place
    with socket(server, f"{box}/channel") as opened:
        opened.send(command("sh", "-c", "cat; echo oops >&2; exit 3"))
        assert json.loads(opened.recv(timeout=TIMEOUT)) == {"started": True}
        for word in (b"one", b"two"):
            opened.send(STDIN + word)
            assert opened.recv(timeout=TIMEOUT) == STDOUT + word
        opened.send(END)
        assert said(opened) == (b"", b"oops\n", {"exit": 3})


def test_closing_a_channel_kills_its_process(place: Place) -> None:
    server, box = place
    with socket(server, f"{box}/channel") as opened:
        opened.send(command("sh", "-c", "echo started; sleep 600; echo"))
        assert json.loads(opened.recv(timeout=TIMEOUT)) == {"started": True}
        assert opened.recv(timeout=TIMEOUT) == STDOUT + b"started\n"
    with api_of(server) as api:
        eventually(lambda: _idle(api, box))


def _idle(api: httpx.Client, box: str) -> bool:
    metrics = api.get(f"/v1/boxes/{box}/metrics").json()
    return bool(metrics["processes"] == 0 and metrics["connections"] == 0)


def test_a_port_is_connected_to_byte_for_byte(local_server: ServerProcess, local_box: str) -> None:
    program = (
        "import socket; s = socket.create_server(('127.0.0.1', 7000)); print('up', flush=True)\n"
        "c, _ = s.accept()\n"
        "while d := c.recv(99): c.sendall(d.upper())\n"
        "c.sendall(b'bye'); c.close()"
    )
    with api_of(local_server) as api:
        spawned = api.post(f"/v1/boxes/{local_box}/processes", json={"argv": ["python3", "-c", program]}).json()["id"]
        eventually(lambda: api.get(f"/v1/boxes/{local_box}/processes/{spawned}/output").content)
    with socket(local_server, f"{local_box}/connect/7000") as opened:
        opened.send(STDIN + b"hello")
        assert opened.recv(timeout=TIMEOUT) == STDOUT + b"HELLO"
        opened.send(END)
        assert list(frames(opened)) == [STDOUT + b"bye", END]


def test_a_terminal_is_typed_at_resized_and_come_back_to(local_server: ServerProcess, local_box: str) -> None:
    with api_of(local_server) as api:
        wanted = {"argv": ["sh"], "pty": True, "rows": 30, "columns": 100, "env": {"PS1": "$ "}}
        process = api.post(f"/v1/boxes/{local_box}/processes", json=wanted).json()["id"]
    path = f"{local_box}/processes/{process}/attach"
    with socket(local_server, path) as opened:
        opened.send(b"stty size\n")
        shown = read_until(opened, b"30 100")
        opened.send(json.dumps({"resize": [40, 120]}))
        opened.send(b"stty size\n")
        shown += read_until(opened, b"40 120")
    with socket(local_server, f"{path}?offset={len(shown)}") as opened:
        opened.send(b"exit 9\n")
        last = list(frames(opened))[-1]
        assert last == {"exit": 9}
    with socket(local_server, path) as opened:
        replayed = b"".join(frame for frame in frames(opened) if isinstance(frame, bytes))
        assert replayed.startswith(shown)


def test_a_terminal_frame_that_makes_no_sense_ends_the_socket(local_server: ServerProcess, local_box: str) -> None:
    with api_of(local_server) as api:
        wanted = {"argv": ["cat"], "pty": True}
        process = api.post(f"/v1/boxes/{local_box}/processes", json=wanted).json()["id"]
    for frame in ("nonsense", '{"resize": [1]}', '{"resize": [0, 1]}', '{"resize": [true, 1]}'):
        with socket(local_server, f"{local_box}/processes/{process}/attach") as opened:
            opened.send(frame)
            assert said(opened)[2]["error"]["code"] == "invalid_request"


def read_until(opened: ClientConnection, wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        frame = opened.recv(timeout=TIMEOUT)
        assert isinstance(frame, bytes), frame
        seen += frame
    return seen


# --- looking at the server ---


def memory(pid: int) -> int:
    """Bytes of a process that are its own."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def settled(look: Callable[[], int]) -> int:
    """A number that has stopped to change."""
    last, same = look(), 0
    for _ in range(500):
        time.sleep(0.02)
        now = look()
        same = same + 1 if now == last else 0
        if same >= 10:
            return now
        last = now
    raise AssertionError("it goes on changing")


def eventually(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not happen")
