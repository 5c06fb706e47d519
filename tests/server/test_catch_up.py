"""One GET reads a stream to its tail, however long it is and however slowly it is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.server.conftest import api_of
from tests.server.raw import RawClient

from holdfast.testing.server import ServerProcess

MEGABYTE = 1024 * 1024
JSON = {"Content-Type": "application/json"}
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("catch-up") / "home", auth=False) as server:
        yield server


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with api_of(server) as client:
        yield client


def fill_json(http: httpx.Client, path: str, megabytes: int) -> list[dict[str, object]]:
    """Messages of about 1 KB, appended in batches of one megabyte."""
    messages = [{"n": number, "text": "x" * 1000} for number in range(megabytes * 1024)]
    http.put(path, headers=JSON).raise_for_status()
    for begin in range(0, len(messages), 1024):
        http.post(path, headers=JSON, content=json.dumps(messages[begin : begin + 1024])).raise_for_status()
    return messages


def fill_bytes(http: httpx.Client, path: str, megabytes: int) -> bytes:
    http.put(path, headers=BYTES).raise_for_status()
    pieces = [bytes([number % 251]) * MEGABYTE for number in range(megabytes)]
    for piece in pieces:
        http.post(path, headers=BYTES, content=piece).raise_for_status()
    return b"".join(pieces)


def test_one_read_ends_at_the_tail(http: httpx.Client) -> None:
    messages = fill_json(http, "/v1/stream/long", 5)
    head = http.head("/v1/stream/long")
    answer = http.get("/v1/stream/long", params={"offset": "-1"})
    assert answer.json() == messages
    assert answer.headers["stream-up-to-date"] == "true"
    assert answer.headers["stream-next-offset"] == head.headers["stream-next-offset"]
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert "stream-closed" not in answer.headers


def test_a_read_from_the_middle_ends_at_the_tail(http: httpx.Client) -> None:
    http.put("/v1/stream/middle", headers=JSON)
    first = http.post("/v1/stream/middle", headers=JSON, content=b"[1,2,3]").headers["stream-next-offset"]
    messages = [{"n": number, "text": "y" * 1000} for number in range(3000)]
    http.post("/v1/stream/middle", headers=JSON, content=json.dumps(messages)).raise_for_status()
    assert http.get("/v1/stream/middle", params={"offset": first}).json() == messages


def test_a_client_that_has_it_all_is_told_so(http: httpx.Client) -> None:
    fill_bytes(http, "/v1/stream/known", 3)
    etag = http.get("/v1/stream/known").headers["etag"]
    assert http.get("/v1/stream/known", headers={"If-None-Match": etag}).status_code == 304
    http.post("/v1/stream/known", headers={**BYTES, "Stream-Closed": "true"}, content=b"end")
    closed = http.get("/v1/stream/known", headers={"If-None-Match": etag})
    assert (closed.status_code, closed.headers["stream-closed"]) == (200, "true")
    assert closed.headers["etag"] != etag
    assert closed.content.endswith(b"end")


def test_http_1_0_gets_all_of_it(server: ServerProcess, http: httpx.Client) -> None:
    content = fill_bytes(http, "/v1/stream/old", 3)
    with RawClient(server.address) as client:
        client.send(b"GET /v1/stream/old?offset=-1 HTTP/1.0\r\n\r\n")
        assert client.answer().body == content


def test_what_is_appended_meanwhile_is_for_the_next_read(server: ServerProcess, http: httpx.Client) -> None:
    content = fill_bytes(http, "/v1/stream/growing", 24)
    with RawClient(server.address, receive_buffer=4096) as client:
        client.send(b"GET /v1/stream/growing?offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.socket.recv(1, 2)  # MSG_PEEK: it has begun
        http.post("/v1/stream/growing", headers=BYTES, content=b"later").raise_for_status()
        answer = client.answer()
        assert answer.body == content
        client.send(
            b"GET /v1/stream/growing?offset=%s HTTP/1.1\r\nHost: localhost\r\n\r\n"
            % answer.headers["stream-next-offset"].encode()
        )
        assert client.answer().body == b"later"


def test_a_stream_that_is_replaced_meanwhile_is_not_mixed_with_its_successor(
    server: ServerProcess, http: httpx.Client
) -> None:
    fill_bytes(http, "/v1/stream/replaced", 24)
    with RawClient(server.address, receive_buffer=4096) as client:
        client.send(b"GET /v1/stream/replaced?offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.socket.recv(1, 2)
        http.delete("/v1/stream/replaced").raise_for_status()
        http.put("/v1/stream/replaced", headers=BYTES, content=b"\xff" * MEGABYTE)
        received = bytearray()
        while piece := client.socket.recv(65536):
            received += piece
    assert len(received) < 24 * MEGABYTE
    assert b"\xff" not in received.partition(b"\r\n\r\n")[2]


def test_readers_that_do_not_read_cost_little_memory(server: ServerProcess, http: httpx.Client) -> None:
    fill_bytes(http, "/v1/stream/large", 32)
    before = resident_bytes(server.pid)
    clients = [RawClient(server.address, receive_buffer=4096) for _ in range(16)]
    for client in clients:
        client.send(b"GET /v1/stream/large?offset=-1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.socket.recv(1, 2)
    http.get("/v1/stream/large").raise_for_status()  # all of it, while the others wait
    assert resident_bytes(server.pid) - before < 96 * MEGABYTE  # 16 times 32 MB would be 512
    for client in clients:
        client.__exit__(None, None, None)


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))
