"""Ports of boxes through the server's proxy: what passes, what does not, and what a hostile box can do about it.

A dummy's ports are this machine's, so what listens "in the box" is a scripted socket here.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.box_providers import dummies
from tests.server.conftest import api_of
from tests.server.raw import RawClient, chunked, request
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websockets

from holdfast.testing.server import ServerProcess

TIMEOUT = 240.0
Script = Callable[[socket.socket, bytes], None]


class Listener:
    """Something that listens in the box, and does as it is told with each connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.heads: list[bytes] = []
        self.problems: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(taken,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, taken: socket.socket) -> None:
        with taken:
            taken.settimeout(TIMEOUT)
            head = b""
            while b"\r\n\r\n" not in head:
                piece = taken.recv(65536)
                if not piece:
                    return
                head += piece
            self.heads.append(head)
            try:
                self._script(taken, head)
                taken.shutdown(socket.SHUT_WR)
                while taken.recv(65536):  # what is not read would make the end a reset, which overtakes the answer
                    pass
            except (BrokenPipeError, ConnectionResetError):
                pass
            except OSError as problem:
                if problem.errno != errno.ENOTCONN:
                    self.problems.append(problem)
            except BaseException as problem:
                self.problems.append(problem)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._accepting.join(TIMEOUT)
        for thread in self._threads:
            thread.join(TIMEOUT)
        assert not self.problems

    def headers(self, number: int = -1) -> dict[str, str]:
        lines = self.heads[number].partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}


@pytest.fixture
def listen() -> Iterator[Callable[[Script | bytes], Listener]]:
    made: list[Listener] = []

    def listen(script: Script | bytes) -> Listener:
        answer = script

        def whole(taken: socket.socket, head: bytes) -> None:
            assert isinstance(answer, bytes)
            taken.sendall(answer)

        made.append(Listener(whole if isinstance(script, bytes) else script))
        return made[-1]

    yield listen
    for each in made:
        each.close()


Listen = Callable[[Script | bytes], Listener]

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def path_of(box: str, port: int, rest: str = "/") -> str:
    return f"/v1/boxes/{box}/ports/{port}{rest}"


def host_of(server: ServerProcess, box: str, port: int) -> str:
    return f"{port}-{box}.localhost:{server.address[1]}"


@pytest.fixture(scope="module")
def open_boxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, str]]:
    """A server that asks for no key, and a box."""
    home = tmp_path_factory.mktemp("open-boxes") / "home"
    with ServerProcess(home, auth=False, providers=dummies) as server, api_of(server) as api:
        yield server, api.post("/v1/boxes", json={}).json()["box"]["id"]


@pytest.fixture
def visitor(dummy_server: ServerProcess) -> Iterator[httpx.Client]:
    """Somebody without a key."""
    with httpx.Client(base_url=dummy_server.url, trust_env=False, timeout=TIMEOUT) as client:
        yield client


# --- what passes ---


def test_a_request_and_its_answer_pass(api: httpx.Client, box: str, listen: Listen) -> None:
    inside = listen(b"HTTP/1.1 418 Teapot\r\nContent-Length: 2\r\nX-Own: yes\r\n\r\nhi")
    answer = api.get(path_of(box, inside.port, "/a%2Fb/c?d=e&f"), headers={"x-mine": "1"})
    assert (answer.status_code, answer.content, answer.headers["x-own"]) == (418, b"hi", "yes")
    assert inside.heads[0].startswith(b"GET /a%2Fb/c?d=e&f HTTP/1.1\r\n")
    seen = inside.headers()
    assert (seen["x-mine"], seen["host"], seen["connection"]) == ("1", f"localhost:{inside.port}", "close")
    assert seen["x-forwarded-prefix"] == path_of(box, inside.port, "")


def test_a_host_names_a_port_and_all_of_its_paths_are_the_boxs(
    dummy_server: ServerProcess, api: httpx.Client, box: str, listen: Listen
) -> None:
    inside = listen(OK)
    host = host_of(dummy_server, box, inside.port)
    for path in ("/", "/health", "/v1/boxes", "/v1/stream/threads/x", "/v1/openapi.json"):
        assert api.get(path, headers={"host": host}).content == b"ok", path
        assert inside.heads[-1].startswith(f"GET {path} ".encode())
        assert inside.headers()["host"] == host


def test_a_body_goes_up_as_it_came(dummy_server: ServerProcess, api: httpx.Client, box: str, listen: Listen) -> None:
    def repeat(taken: socket.socket, head: bytes) -> None:
        body = head.partition(b"\r\n\r\n")[2]
        while not body.endswith(b"0\r\n\r\n") and len(body) < 3 << 20:
            body += taken.recv(65536)
        taken.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)

    inside = listen(repeat)
    answer = api.post(path_of(box, inside.port), content=bytes(3 << 20))
    assert answer.content == bytes(3 << 20)
    assert inside.headers()["content-length"] == str(3 << 20)

    def pieces() -> Iterator[bytes]:
        yield b"one"
        yield b"two"

    answer = api.post(path_of(box, inside.port), content=pieces())
    assert inside.headers()["transfer-encoding"] == "chunked"
    assert re.sub(rb"[0-9]\r\n|\r\n", b"", answer.content) == b"onetwo"


def test_an_answer_is_passed_on_as_it_comes(api: httpx.Client, box: str, listen: Listen) -> None:
    go_on = threading.Event()

    def events(taken: socket.socket, head: bytes) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n")
        assert go_on.wait(TIMEOUT)
        taken.sendall(b"data: two\n\n")

    inside = listen(events)
    with api.stream("GET", path_of(box, inside.port)) as answer:
        pieces = answer.iter_bytes()
        assert next(pieces) == b"data: one\n\n"
        go_on.set()
        assert b"".join(pieces) == b"data: two\n\n"


@pytest.mark.parametrize(
    ("method", "answer", "expected"),
    [
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n1\r\n!\r\n0\r\nT: x\r\n\r\n", b"hi!"),
        ("GET", b"HTTP/1.0 200 OK\r\n\r\nuntil the end", b"until the end"),
        ("GET", b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK, b"ok"),
        ("GET", OK + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nextra", b"ok"),
        ("GET", OK + b"garbage", b"ok"),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", b""),
        ("GET", b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""),
    ],
)  # fmt: skip
def test_every_way_to_end_an_answer_is_understood(
    api: httpx.Client, box: str, listen: Listen, method: str, answer: bytes, expected: bytes
) -> None:
    inside = listen(answer)
    for _ in range(2):  # the connection to the server stays usable
        assert api.request(method, path_of(box, inside.port)).content == expected


def test_an_answer_flows_only_as_fast_as_it_is_read(dummy_server: ServerProcess, box: str, listen: Listen) -> None:
    sent = 0
    stuck = threading.Event()

    def flood(taken: socket.socket, head: bytes) -> None:
        nonlocal sent
        taken.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        taken.settimeout(1.0)
        try:
            while sent < 256 << 20:
                sent += taken.send(bytes(65536))
        except TimeoutError:
            stuck.set()

    inside = listen(flood)
    with RawClient(dummy_server.address, receive_buffer=65536) as client:
        target = path_of(box, inside.port)
        client.send(request("GET", target, authorization=f"Bearer {dummy_server.api_key}"))
        assert client.head()[0] == 200
        assert stuck.wait(TIMEOUT)
    assert sent < 64 << 20


def test_a_client_that_leaves_ends_the_connection_to_the_box(
    dummy_server: ServerProcess, box: str, listen: Listen
) -> None:
    ended = threading.Event()

    def wait(taken: socket.socket, head: bytes) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\n\r\nbegun")
        if not taken.recv(1):
            ended.set()

    inside = listen(wait)
    with RawClient(dummy_server.address) as client:
        client.send(request("GET", path_of(box, inside.port), authorization=f"Bearer {dummy_server.api_key}"))
        assert client.head()[0] == 200
    assert ended.wait(TIMEOUT)


def test_a_path_without_its_slash_is_sent_on(api: httpx.Client, box: str) -> None:
    answer = api.get(path_of(box, 1, ""), follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (308, path_of(box, 1, "/"))


def test_websockets_pass_byte_for_byte(dummy_server: ServerProcess, box: str) -> None:
    def echo(opened: ServerConnection) -> None:
        for message in opened:
            opened.send(message)

    with serve_websockets(echo, "127.0.0.1", 0, subprotocols=["chat"], compression=None, max_size=None) as inside:  # type: ignore[list-item]
        serving = threading.Thread(target=inside.serve_forever)
        serving.start()
        port = inside.socket.getsockname()[1]
        key = {"authorization": f"Bearer {dummy_server.api_key}"}
        for url, headers in (
            (f"ws{dummy_server.url.removeprefix('http')}{path_of(box, port, '/ws')}", key),
            (f"ws://{host_of(dummy_server, box, port)}/ws", key),
        ):
            with connect(
                url,
                sock=socket.create_connection(dummy_server.address),
                additional_headers=headers,
                subprotocols=["chat"],  # type: ignore[list-item]
                max_size=None,
                open_timeout=TIMEOUT,
            ) as opened:
                assert opened.subprotocol == "chat"
                for message in ("text", b"bytes", bytes(3 << 20)):
                    opened.send(message)
                    assert opened.recv(timeout=TIMEOUT) == message
        inside.shutdown()
        serving.join(TIMEOUT)


def test_a_server_that_stops_does_not_wait_for_visitors(tmp_path: Path, listen: Listen) -> None:
    def wait(taken: socket.socket, head: bytes) -> None:
        taken.sendall(b"HTTP/1.1 200 OK\r\n\r\nbegun")
        taken.recv(1)

    inside = listen(wait)
    with ServerProcess(tmp_path / "home", providers=dummies) as server:
        with api_of(server) as api:
            box = api.post("/v1/boxes", json={}).json()["box"]["id"]
        with RawClient(server.address) as client:
            client.send(request("GET", path_of(box, inside.port), authorization=f"Bearer {server.api_key}"))
            assert client.head()[0] == 200
            server.stop()
            assert "graceful shutdown exceeded" not in server.read_log()
            assert b"0\r\n\r\n" not in client.rest()


# --- what does not ---


def test_our_credentials_never_reach_the_box(
    dummy_server: ServerProcess, api: httpx.Client, visitor: httpx.Client, box: str, listen: Listen
) -> None:
    inside = listen(OK)
    assert dummy_server.api_key is not None
    host = host_of(dummy_server, box, inside.port)
    assert api.get(path_of(box, inside.port), headers={"cookie": "session=of-this-machine"}).content == b"ok"
    assert "cookie" not in inside.headers()
    cookie, token = preview(api, visitor, box, inside.port)
    sent = {
        "host": host,
        "cookie": f"mine=1; {cookie}; other=2",
        "authorization": "Bearer of-the-app",
        "referer": f"http://{host}/?holdfast_token={token}",
    }
    assert visitor.get(f"/x?holdfast_token={token}&a=b", headers=sent).content == b"ok"
    assert inside.heads[-1].startswith(b"GET /x?a=b HTTP/1.1\r\n")
    seen = inside.headers()
    assert (seen["cookie"], seen["authorization"]) == ("mine=1; other=2", "Bearer of-the-app")
    assert visitor.get("/", headers={**sent, "authorization": f"Bearer {dummy_server.api_key}"}).content == b"ok"
    assert "authorization" not in inside.headers()
    for secret in (dummy_server.api_key, token, cookie.partition("=")[2]):
        assert not any(secret.encode() in head for head in inside.heads)


def preview(api: httpx.Client, visitor: httpx.Client, box: str, port: int) -> tuple[str, str]:
    """Open a port as a browser does; returns the cookie it got, and the token in the URL of another link."""
    url, token = link_to(api, box, port)
    headers = {"host": url.netloc.decode(), "sec-fetch-mode": "navigate"}
    opened = visitor.get("/", params={"holdfast_token": token}, headers=headers)
    assert opened.status_code == 200
    assert 'content="0;url=/"' in opened.text
    cookie = opened.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    assert "domain" not in cookie.lower()
    visitor.cookies.clear()
    return cookie.partition(";")[0], link_to(api, box, port)[1]


def link_to(api: httpx.Client, box: str, port: int) -> tuple[httpx.URL, str]:
    """The URL of a port, and the token in it."""
    url = httpx.URL(api.get(f"/v1/boxes/{box}/preview", params={"port": port}).json()["url"])
    assert url.host == f"{port}-{box}.localhost"
    return url, url.params["holdfast_token"]


def test_a_browser_uses_up_the_token_of_a_link(
    api: httpx.Client, visitor: httpx.Client, box: str, listen: Listen
) -> None:
    """The pages of the port see the URL that they were opened with: a service worker does."""
    inside = listen(OK)
    url, token = link_to(api, box, inside.port)
    host = {"host": url.netloc.decode()}
    browser = {**host, "sec-fetch-mode": "navigate"}
    for _ in range(2):  # a program may use it until then
        assert visitor.get("/", params={"holdfast_token": token}, headers=host).content == b"ok"
    opened = visitor.get("/", params={"holdfast_token": token}, headers=browser)
    cookie = opened.headers["set-cookie"].partition(";")[0]
    visitor.cookies.clear()
    for headers in (host, browser):
        assert visitor.get("/", params={"holdfast_token": token}, headers=headers).status_code == 401
    again = visitor.get("/", params={"holdfast_token": token}, headers={**browser, "cookie": cookie})
    assert (again.status_code, 'content="0;url=/"' in again.text) == (200, True)  # who is here may open it again


def test_hop_by_hop_headers_stay_on_their_hop(dummy_server: ServerProcess, box: str, listen: Listen) -> None:
    answer = (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: 5\r\n"
        b"Upgrade: h2c\r\nProxy-Authenticate: x\r\nAlt-Svc: h3=evil\r\nStrict-Transport-Security: max-age=9\r\n"
        b"X-Stays: 1\r\n\r\nok"
    )
    inside = listen(answer)
    with RawClient(dummy_server.address) as client:
        client.send(
            request(
                "GET",
                path_of(box, inside.port),
                authorization=f"Bearer {dummy_server.api_key}",
                connection="keep-alive, x-mine",
                x_mine="1",
                te="trailers",
                proxy_authorization="secret",
                x_forwarded_for="1.2.3.4",
                x_stays="1",
            )
        )
        answered = client.answer()
    assert answered.headers["x-stays"] == "1"
    assert not answered.headers.keys() & {"x-hop", "keep-alive", "upgrade", "alt-svc", "strict-transport-security"}
    seen = inside.headers()
    assert seen["x-stays"] == "1"
    assert not seen.keys() & {"x-mine", "te", "proxy-authorization", "x-forwarded-for"}


def test_a_box_sets_cookies_for_its_own_name_alone(
    dummy_server: ServerProcess, api: httpx.Client, box: str, listen: Listen
) -> None:
    inside = listen(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nSet-Cookie: a=b; Domain=localhost; Path=/\r\n"
        b"Set-Cookie: holdfast_preview=forged\r\nClear-Site-Data: *\r\n\r\nok"
    )
    by_name = api.get("/", headers={"host": host_of(dummy_server, box, inside.port)})
    assert by_name.headers.get_list("set-cookie") == ["a=b; Path=/"]
    by_path = api.get(path_of(box, inside.port))
    assert not by_path.headers.keys() & {"set-cookie", "clear-site-data"}
    assert "sandbox" in by_path.headers["content-security-policy"]
    assert "allow-same-origin" not in by_path.headers["content-security-policy"]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi!",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\nh",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b=c\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX Y: a\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nraw",
        b"HTTP/1.1 999 Nonsense\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\nzz\r\n",
    ],
)
def test_an_answer_that_is_none_is_a_bad_gateway(api: httpx.Client, box: str, listen: Listen, answer: bytes) -> None:
    inside = listen(answer)
    refused = api.get(path_of(box, inside.port))
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "bad_gateway")
    assert api.get("/health").status_code == 200


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
    ],
)
def test_an_answer_that_breaks_off_does_not_look_whole(
    api: httpx.Client, box: str, listen: Listen, answer: bytes
) -> None:
    inside = listen(answer)
    with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)):
        api.get(path_of(box, inside.port))


def test_a_port_that_nobody_listens_on_is_a_refusal(api: httpx.Client, box: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for path, expected in (
        (path_of(box, port), (502, "connect_refused")),
        (path_of(box, 0), (400, "invalid_request")),
        (path_of(box, 99999), (400, "invalid_request")),
        (path_of("b-none", 80), (404, "box_not_found")),
    ):
        answer = api.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == expected


def test_a_request_cannot_be_two(dummy_server: ServerProcess, box: str, listen: Listen) -> None:
    """Whatever a client smuggles into one request, the box gets exactly one, framed anew."""
    inside = listen(OK)
    authorization = f"Bearer {dummy_server.api_key}"
    smuggled = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    for body, headers in (
        (smuggled, {"content_length": str(len(smuggled))}),
        (chunked(smuggled), {"transfer_encoding": "chunked"}),
        (chunked(smuggled), {"transfer_encoding": "chunked", "content_length": "5"}),
    ):
        with RawClient(dummy_server.address) as client:
            client.send(request("POST", path_of(box, inside.port), body, authorization=authorization, **headers))
            assert client.answer().status in (200, 400)
    assert all(head.startswith(b"POST / HTTP/1.1\r\n") for head in inside.heads)


# --- who may ---


def test_a_visitor_needs_a_key_or_a_preview_of_this_very_port(
    dummy_server: ServerProcess, api: httpx.Client, visitor: httpx.Client, box: str, listen: Listen, make_box: Any
) -> None:
    inside, other = listen(OK), listen(OK)
    cookie, token = preview(api, visitor, box, inside.port)
    host = host_of(dummy_server, box, inside.port)
    thread = api.post("/v1/threads", json={}).json()["id"]
    thread_token = api.post(f"/v1/threads/{thread}/tokens", json={"scope": "write"}).json()["token"]
    another = host_of(dummy_server, box, other.port)
    elsewhere = host_of(dummy_server, make_box(), inside.port)
    value = cookie.partition("=")[2]
    for headers, path, status in (
        ({"host": host}, "/", 401),
        ({"host": host, "authorization": "Bearer hf_wrong"}, "/", 401),
        ({"host": host, "authorization": f"Bearer {thread_token}"}, "/", 403),
        ({"host": host, "cookie": cookie}, "/", 200),
        ({"host": host, "cookie": cookie, "authorization": f"Bearer {thread_token}"}, "/", 200),
        ({"host": host, "cookie": cookie, "origin": f"http://{host}"}, "/", 200),
        ({"host": host, "cookie": cookie, "origin": f"http://{another}"}, "/", 403),
        ({"host": host, "cookie": cookie, "origin": "null"}, "/", 403),
        ({"host": host}, f"/?holdfast_token={token}", 200),
        ({"host": host}, f"/?holdfast_token={value}", 401),
        ({"host": host, "cookie": f"holdfast_preview={token}"}, "/", 401),
        ({"host": another, "cookie": cookie}, "/", 401),
        ({"host": elsewhere, "cookie": cookie}, "/", 401),
        ({"host": another}, f"/?holdfast_token={token}", 401),
        ({"cookie": cookie}, "/v1/boxes", 401),
        ({}, f"/v1/boxes?holdfast_token={token}", 401),
        ({"authorization": f"Bearer {token}"}, "/v1/boxes", 401),
    ):
        assert visitor.get(path, headers=headers).status_code == status, (headers, path)
    assert all(b"hf_" not in head for head in inside.heads)


def test_a_preview_by_path_has_a_cookie_for_that_path(
    api: httpx.Client, visitor: httpx.Client, box: str, listen: Listen
) -> None:
    inside = listen(OK)
    params = {"port": inside.port}
    url = httpx.URL(api.get(f"/v1/boxes/{box}/preview", params=params, headers={"host": "box.example"}).json()["url"])
    assert (url.host, url.path) == ("box.example", path_of(box, inside.port))
    opened = visitor.get(url.path, params=url.params, headers={"sec-fetch-mode": "navigate"})
    parts = {part.strip() for part in opened.headers["set-cookie"].split(";")}
    assert {f"Path={path_of(box, inside.port)}", "HttpOnly", "SameSite=Strict"} <= parts
    [cookie] = [part for part in parts if part.startswith("holdfast_preview=")]
    visitor.cookies.clear()
    assert visitor.get(url.path, headers={"cookie": cookie}).content == b"ok"
    assert visitor.get(path_of(box, inside.port + 1), headers={"cookie": cookie}).status_code == 401
    assert all(b"cookie" not in head.lower() for head in inside.heads)


def test_a_websocket_needs_the_same(
    dummy_server: ServerProcess, api: httpx.Client, visitor: httpx.Client, box: str, listen: Listen
) -> None:
    inside = listen(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 2\r\n\r\nno")
    host = host_of(dummy_server, box, inside.port)
    cookie, token = preview(api, visitor, box, inside.port)
    ours = "{}:{}".format(*dummy_server.address)
    for headers, url, status in (
        ({}, host, 401),
        ({}, f"{ours}{path_of(box, inside.port)}", 401),
        ({"cookie": cookie, "origin": "http://evil.example"}, host, 403),
        ({"cookie": cookie, "origin": f"http://{host}"}, host, 426),
        ({}, f"{host}/?holdfast_token={token}", 426),
    ):
        with pytest.raises(InvalidStatus) as refused:
            connect(f"ws://{url}", sock=socket.create_connection(dummy_server.address), additional_headers=headers)
        assert refused.value.response.status_code == status, headers
    assert all(token.encode() not in head and b"holdfast" not in head for head in inside.heads)


def test_a_hostile_handshake_is_a_bad_gateway(dummy_server: ServerProcess, box: str, listen: Listen) -> None:
    key = {"authorization": f"Bearer {dummy_server.api_key}"}
    for answer in (
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX: a\x01b\r\n\r\n",
        b"nonsense\r\n\r\n",
    ):
        inside = listen(answer)
        url = f"ws{dummy_server.url.removeprefix('http')}{path_of(box, inside.port)}"
        with pytest.raises(InvalidStatus) as refused:
            connect(url, additional_headers=key, proxy=None, open_timeout=TIMEOUT)
        assert refused.value.response.status_code == 502, answer


def test_a_page_of_a_box_cannot_use_an_api_without_keys(open_boxes: tuple[ServerProcess, str], listen: Listen) -> None:
    server, box = open_boxes
    inside = listen(OK)
    host = host_of(server, box, inside.port)
    page = f"http://{host}"
    with httpx.Client(base_url=server.url, trust_env=False, timeout=TIMEOUT) as browser:
        assert browser.get("/", headers={"host": host, "origin": page}).content == b"ok"
        for path in ("/v1/threads", "/v1/boxes", "/v1/stream/threads/x"):
            # By its own name it reaches its own box, by ours it is refused.
            assert browser.post(path, headers={"host": host, "origin": page}).content == b"ok"
            for origin in (page, "null", f"http://1-b-other.localhost:{server.address[1]}"):
                refused = browser.post(path, headers={"origin": origin}, json={})
                assert refused.status_code == 403, (path, origin)
                assert "access-control-allow-origin" not in refused.headers
        for origin in ("http://evil.example", f"http://1-{box}.localhost:{server.address[1]}"):
            assert browser.get("/", headers={"host": host, "origin": origin}).status_code == 403
        assert browser.get("/", headers={"host": f"{inside.port}-{box}.evil.example"}).status_code == 403
        assert browser.get(path_of(box, inside.port), headers={"origin": page}).status_code == 403


def test_the_exchange_leads_nowhere_else(
    dummy_server: ServerProcess, api: httpx.Client, visitor: httpx.Client, box: str
) -> None:
    headers = {"host": host_of(dummy_server, box, 80), "sec-fetch-mode": "navigate"}
    for path in ("//evil.example/", "/\\evil.example/", '/"><script>alert(1)</script>'):
        token = link_to(api, box, 80)[1]
        with RawClient(dummy_server.address) as client:
            client.send(
                request("GET", f"{path}?holdfast_token={token}", **{k.replace("-", "_"): v for k, v in headers.items()})
            )
            answer = client.answer()
        if answer.status == 200:
            [place] = re.findall(r'content="0;url=([^"]*)"', answer.body.decode())
            assert re.match(r"/(?![/\\])", place)
            assert b"<script" not in answer.body
        else:
            assert answer.status == 400


def test_refusals_are_told_in_the_one_shape(visitor: httpx.Client, box: str) -> None:
    answer = visitor.get(path_of(box, 80))
    error = json.loads(answer.content)["error"]
    assert (answer.status_code, error["code"]) == (401, "unauthorized")
    assert error["requestId"] == answer.headers["x-request-id"]
    assert "www-authenticate" in answer.headers
