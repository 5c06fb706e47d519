"""Clients that pipeline, vanish, dawdle or come from elsewhere: others are served, and nothing is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import httpx
import pytest
from tests.server.hostile.witness import JSON, MAX_BODY, Witness, new_stream, resident_bytes
from tests.server.raw import TIMEOUT, RawClient, chunked, request

from holdfast.testing.server import ServerProcess

# Several requests on one connection


def test_pipelined_requests_are_answered_in_order(client: RawClient, server: ServerProcess, witness: Witness) -> None:
    stream = new_stream(server)
    sent: list[tuple[bytes, int, Callable[[bytes], bool]]] = []
    for n in range(10):
        message = json.dumps({"n": n}).encode()
        sent += [
            (request("POST", stream, message, **JSON), 204, lambda body: body == b""),
            (request("GET", "/health"), 200, lambda body: b'"status":"ok"' in body),
            (request("GET", stream), 200, lambda body, n=n: len(json.loads(body)) == n + 1),  # type: ignore[misc]
            (request("GET", f"/v1/threads/{witness.thread}"), 200, lambda body: b'"entryCount":1' in body),
            (
                request("POST", "/v1/threads", b'{"x":1}', **JSON),
                422,
                lambda body: b"is not known here" in body.lower(),
            ),
            (request("GET", f"/v1/stream/hostile/none-{n}"), 404, lambda body, n=n: b"none-%d" % n in body),  # type: ignore[misc]
        ]
    client.send(b"".join(wire for wire, _, _ in sent))
    for wire, status, is_right in sent:
        answer = client.answer()
        assert answer.status == status, wire
        assert is_right(answer.body), (wire, answer.body)


def test_what_is_pipelined_behind_a_waiting_request_waits(client: RawClient, server: ServerProcess) -> None:
    stream = new_stream(server)
    large = b'"' + b"x" * 500_000 + b'"'
    client.send(
        request("GET", f"{stream}?offset=now&live=long-poll")
        + request("POST", stream, large, **JSON)
        + request("GET", "/health")
        + request("POST", stream, b"1", **JSON)
        + request("GET", stream)
    )
    answers = [client.answer() for _ in range(5)]
    assert [answer.status for answer in answers] == [204, 204, 200, 204, 200]
    assert json.loads(answers[-1].body) == ["x" * 500_000, 1]


@pytest.mark.parametrize("garbage", [b"\x00\x01\x02\r\n\r\n", b"GET /v1/stream/" + b"x" * 20_000], ids=["bytes", "url"])
def test_garbage_behind_a_request_does_not_cost_the_request_its_answer(
    client: RawClient, server: ServerProcess, garbage: bytes
) -> None:
    stream = new_stream(server)
    client.send(
        request("POST", stream, b"1", **JSON)
        + request("GET", "/health")
        + request("GET", f"{stream}?offset=now&live=long-poll")
        + garbage
    )
    assert [client.answer().status for _ in range(3)] == [204, 200, 204]
    assert client.answer().status in (400, 414)
    assert client.is_over()


def test_a_body_over_the_limit_behind_a_request_does_not_cost_the_request_its_answer(
    client: RawClient, server: ServerProcess
) -> None:
    stream = new_stream(server)
    client.try_send(
        request("GET", f"{stream}?offset=now&live=long-poll")
        + request("POST", stream, b"1", **JSON)
        + request("POST", stream, b"x" * 2 * MAX_BODY, **JSON)
    )
    assert [client.answer().status for _ in range(3)] == [204, 204, 413]
    assert client.is_over()


def test_nothing_is_done_after_a_refusal(client: RawClient, server: ServerProcess) -> None:
    stream = new_stream(server)
    client.send(
        request("POST", stream, b"1", content_length=str(2 * MAX_BODY), **JSON)
        + b"x" * (2 * MAX_BODY - 1)
        + request("POST", stream, b"2", **JSON)
    )
    assert client.answer().status == 413
    assert client.is_over()
    with RawClient(server.address) as other:
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (MAX_BODY + 1, b"x" * (MAX_BODY + 1))
        other.send(request("POST", stream, transfer_encoding="chunked", **JSON) + chunks)
        other.try_send(request("POST", stream, b"3", **JSON))
        assert other.answer().status == 413
        assert other.is_over()
    assert httpx.get(server.url + stream, timeout=TIMEOUT).json() == []


def test_nothing_is_answered_after_a_close(client: RawClient, server: ServerProcess) -> None:
    stream = new_stream(server)
    client.send(request("POST", stream, b"1", connection="close", **JSON) + request("POST", stream, b"2", **JSON))
    answer = client.answer()
    assert (answer.status, answer.headers["connection"]) == (204, "close")
    assert client.is_over()
    assert httpx.get(server.url + stream, timeout=TIMEOUT).json() == [1]


# Clients that go away


@pytest.mark.parametrize("surface", ["stream", "rest"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_client_that_has_finished_sending_gets_its_answer(
    client: RawClient, server: ServerProcess, surface: str, method: str
) -> None:
    stream = new_stream(server)
    target = stream if surface == "stream" else "/v1/threads"
    client.send(request(method, target, b"{}" if method == "POST" else b"", **JSON))
    client.finish_sending()
    assert client.answer().status == {"GET": 200, "POST": 204 if surface == "stream" else 201}[method]
    assert client.is_over()


def test_pipelined_requests_of_a_client_that_has_finished_sending_are_answered(
    client: RawClient, server: ServerProcess
) -> None:
    stream = new_stream(server)
    client.send(b"".join(request("POST", stream, b"%d" % n, **JSON) for n in range(5)) + request("GET", "/health"))
    client.finish_sending()
    assert [client.answer().status for _ in range(6)] == [204] * 5 + [200]
    assert client.is_over()


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"GET /v1/str",
        request("GET", "/v1/stream/x")[:-2],
        request("POST", "/v1/stream/x", b"{}", content_length="100", **JSON),
        request("POST", "/v1/stream/x", transfer_encoding="chunked", **JSON) + b"5\r\nab",
        request("POST", "/v1/threads", b"{}", content_length="100", **JSON),
    ],
    ids=["nothing", "url", "head", "body", "chunk", "rest body"],
)
@pytest.mark.parametrize("how", ["finish", "vanish"])
def test_a_part_of_a_request_is_none(server: ServerProcess, witness: Witness, part: bytes, how: str) -> None:
    for _ in range(20):
        with RawClient(server.address) as client:
            client.send(part)
            if how == "vanish":
                client.vanish()
            else:
                client.finish_sending()
                client.rest()


def test_what_clients_that_vanish_had_sent_is_there_whole_or_not_at_all(
    server: ServerProcess, witness: Witness
) -> None:
    stream = new_stream(server)
    for n in range(100):
        with RawClient(server.address) as client:
            client.send(request("POST", stream, b'["%d","%d"]' % (n, n), **JSON))
            client.vanish()
    stored = httpx.get(server.url + stream, timeout=TIMEOUT).json()
    assert stored[::2] == stored[1::2]
    assert len(set(stored)) * 2 == len(stored)


def test_a_thread_whose_maker_vanished_has_a_row_or_is_not_there(server: ServerProcess, witness: Witness) -> None:
    ids = [f"t-vanished-{n}" for n in range(100)]
    for id in ids:
        with RawClient(server.address) as client:
            client.send(request("PUT", f"/v1/stream/threads/{id}", b'{"payload":{"type":"chat"}}', **JSON))
            client.vanish()
    with httpx.Client(base_url=server.url, timeout=TIMEOUT) as http:
        for id in ids:
            stream, row = http.get(f"/v1/stream/threads/{id}"), http.get(f"/v1/threads/{id}")
            assert stream.status_code == row.status_code, id
            if stream.status_code == 200:
                assert row.json()["entryCount"] == len(stream.json()) == 1


def open_tails(server: ServerProcess) -> int:
    metrics = httpx.get(f"{server.url}/metrics", timeout=TIMEOUT).text
    return int(float(next(line for line in metrics.splitlines() if line.startswith("holdfast_open_tails ")).split()[1]))


def eventually(reached: Callable[[], bool], what: str) -> None:
    """For what the server does in its own time."""
    deadline = time.monotonic() + TIMEOUT
    while not reached():
        assert time.monotonic() < deadline, f"{what}: not within {TIMEOUT:g} s"
        time.sleep(0.01)


@pytest.mark.parametrize("behind", [b"", b"GET /v1/str"], ids=["alone", "with a part of a request behind"])
def test_live_readers_that_vanish_are_forgotten(server: ServerProcess, witness: Witness, behind: bytes) -> None:
    for how in ("vanish", "close"):
        clients = [RawClient(server.address) for _ in range(20)]
        for client in clients:
            client.send(request("GET", f"{witness.stream}?offset=-1&live=sse") + behind)
            assert client.head()[0] == 200
            assert b"event: data" in client.read_chunk()
        assert open_tails(server) >= 20
        for client in clients:
            if how == "vanish":
                client.vanish()
            client.__exit__(None, None, None)
        eventually(lambda: open_tails(server) == 0, "the end of all live reads")


def test_two_hundred_connections_that_are_dropped_do_no_harm(server: ServerProcess, witness: Witness) -> None:
    clients = [RawClient(server.address) for _ in range(200)]
    for n, client in enumerate(clients):
        if n % 3:
            client.send(request("GET", witness.stream)[: n % 50])
    for n, client in enumerate(clients):
        if n % 2:
            client.vanish()
        client.__exit__(None, None, None)


# Slow clients


def send_slowly(client: RawClient, data: bytes, pause: float) -> bool:
    """Byte by byte, until the server says something; whether it did."""
    for byte in data:
        client.try_send(bytes([byte]))
        if client.hears_something(pause):
            return True
    return False


@pytest.mark.parametrize(
    "target",
    ["/v1/stream/slow/head", "/health"],
)
def test_a_head_that_comes_byte_by_byte_is_not_waited_for(impatient: ServerProcess, target: str) -> None:
    with RawClient(impatient.address) as client:
        assert send_slowly(client, request("GET", target, filler="x" * 1_000), 0.05)
        answer = client.answer()
        assert (answer.status, answer.error) == (408, "timeout")
        assert client.is_over()


@pytest.mark.parametrize("surface", ["stream", "rest"])
def test_a_body_that_comes_byte_by_byte_is_not_waited_for(impatient: ServerProcess, surface: str) -> None:
    stream = new_stream(impatient)
    target = stream if surface == "stream" else "/v1/threads"
    with RawClient(impatient.address) as client:
        client.send(request("POST", target, content_length="1000", **JSON))
        assert send_slowly(client, b'{"title":"' + b"x" * 1_000, 0.05)
        answer = client.answer()
        assert (answer.status, answer.error) == (408, "timeout")
        assert client.is_over()
    assert httpx.get(impatient.url + stream, timeout=TIMEOUT).json() == []


def test_a_client_that_says_nothing_is_not_waited_for(impatient: ServerProcess) -> None:
    with RawClient(impatient.address) as client:
        assert client.answer().status == 408
        assert client.is_over()


def test_a_large_body_may_take_its_time_while_it_comes(impatient: ServerProcess) -> None:
    stream = new_stream(impatient, "application/octet-stream")
    body = Random(2).randbytes(400_000)
    with RawClient(impatient.address) as client:
        client.send(request("POST", stream, content_length=str(len(body)), content_type="application/octet-stream"))
        for start in range(0, len(body), 10_000):
            client.send(body[start : start + 10_000])
            assert start + 10_000 == len(body) or not client.hears_something(0.06)
        assert client.answer().status == 204


def test_others_are_served_while_many_are_slow(impatient: ServerProcess) -> None:
    slow = [RawClient(impatient.address) for _ in range(50)]
    for client in slow:
        client.send(b"POST /v1/stream/slow/many HTTP/1.1\r\ncontent-length: 10\r\n\r\n")
    assert httpx.get(f"{impatient.url}/health", timeout=TIMEOUT).status_code == 200
    for client in slow:
        assert client.answer().status == 408
        assert client.is_over()
        client.__exit__(None, None, None)


def test_an_idle_connection_may_stay_between_requests(impatient: ServerProcess) -> None:
    """The time limit is for requests on their way, not for clients that have nothing to ask."""
    with RawClient(impatient.address) as idle:
        idle.send(request("GET", "/health"))
        assert idle.answer().status == 200
        with RawClient(impatient.address) as silent:
            assert silent.answer().status == 408  # as long as this took, the other one may be idle
        idle.send(request("GET", "/health"))
        assert idle.answer().status == 200


def test_a_request_behind_a_waiting_one_is_not_called_slow(impatient: ServerProcess) -> None:
    """While the server does not read, nobody can be blamed for what has not arrived."""
    stream = new_stream(impatient)
    large = b'"' + b"x" * 3_000_000 + b'"'
    with RawClient(impatient.address) as client:
        client.socket.settimeout(2 * TIMEOUT)
        client.send(request("GET", f"{stream}?offset=now&live=long-poll"))
        client.send(request("POST", stream, content_length=str(len(large)), **JSON) + large[:100_000])
        with RawClient(impatient.address) as silent:
            assert silent.answer().status == 408
        httpx.post(impatient.url + stream, json="wake up", timeout=TIMEOUT)
        assert client.answer().status == 200
        client.send(large[100_000:])
        assert client.answer().status == 204


# Slow readers


def test_live_readers_that_stop_reading_cost_little_and_miss_nothing(server: ServerProcess, witness: Witness) -> None:
    stream = new_stream(server)
    message = "x" * 100_000
    count = 400
    clients = [RawClient(server.address, receive_buffer=4096) for _ in range(10)]
    with httpx.Client(base_url=server.url, timeout=TIMEOUT) as http:
        for n in range(100):  # until caches have their size
            assert http.post(stream, json={"n": n, "padding": message}).status_code == 204
        for client in clients:
            client.send(request("GET", f"{stream}?offset=now&live=sse"))
            assert client.head()[0] == 200
            client.read_chunk()
        before = resident_bytes(server)
        for n in range(count):
            assert http.post(stream, json={"n": n, "padding": message}).status_code == 204
        growth = resident_bytes(server) - before
    assert growth < 60_000_000, f"{growth} bytes for readers that are 400 MB behind"
    for client in (clients[0], clients[-1]):
        assert list(seen_live(client, count)) == list(range(count))
    for client in clients:
        client.__exit__(None, None, None)


def seen_live(client: RawClient, count: int) -> Iterator[int]:
    """The numbers of the messages that an event stream brings."""
    buffer, seen = b"", 0
    while seen < count:
        buffer += client.read_chunk()
        *events, buffer = buffer.split(b"\n\n")
        for event in events:
            kind, _, data = event.partition(b"\ndata:")
            if kind == b"event: data":
                for value in json.loads(data.replace(b"\ndata:", b"\n")):
                    yield value["n"]
                    seen += 1


# Who may ask, where no key is asked for


@pytest.mark.parametrize("target", ["/v1/stream/hostile/origin", "/v1/threads", "/health"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:8484"}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"host": "app.localhost:1"}, 200),
        ({"host": "example.com"}, 403),
        ({"host": "127.0.0.1.example.com"}, 403),
        ({"host": "localhost.example.com"}, 403),
        ({"host": "10.0.0.1"}, 403),
        ({"host": "0.0.0.0"}, 403),
        ({"host": ""}, 403),
        ({"host": "[::1"}, 403),
        ({"host": "user@example.com"}, 403),
        ({"host": "localhost@example.com"}, 403),
        ({"host": "\xff"}, 403),
        ({"host": "127.0.0.1:8484", "origin": "http://127.0.0.1:8484"}, 200),
        ({"host": "127.0.0.1:8484", "origin": "http://127.0.0.1:8485"}, 403),
        ({"host": "127.0.0.1:8484", "origin": "http://localhost:8484"}, 403),
        ({"host": "127.0.0.1", "origin": "http://localhost:3000"}, 403),
        ({"host": "127.0.0.1", "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}, 200),
        ({"host": "127.0.0.1", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
        ({"host": "127.0.0.1", "sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"host": "127.0.0.1", "origin": "https://127.0.0.1"}, 200),
        ({"host": "127.0.0.1", "origin": "http://example.com"}, 403),
        ({"host": "127.0.0.1", "origin": "http://localhost.example.com"}, 403),
        ({"host": "127.0.0.1", "origin": "null"}, 403),
        ({"host": "127.0.0.1", "origin": "http://[::1"}, 403),
        ({"host": "127.0.0.1", "origin": ""}, 403),
        ({"host": "127.0.0.1", "origin": "\xff"}, 403),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)
def test_without_keys_only_this_machine_is_answered(
    client: RawClient, server: ServerProcess, target: str, headers: dict[str, str], status: int
) -> None:
    httpx.put(f"{server.url}/v1/stream/hostile/origin", json=[], timeout=TIMEOUT)
    client.send(request("GET", target, **headers))
    answer = client.answer()
    assert answer.status == status
    if status == 403:
        assert answer.error == "forbidden"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "OPTIONS"])
def test_a_foreign_page_can_change_nothing(client: RawClient, witness: Witness, method: str) -> None:
    client.send(request(method, witness.stream, b"{}", origin="http://example.com", **JSON))
    answer = client.answer()
    assert answer.status == 403 or method == "OPTIONS"
    assert "access-control-allow-origin" not in answer.headers


def test_a_connection_that_stays_idle_is_closed(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", auth=False, keep_alive=0.2) as server, RawClient(server.address) as idle:
        for _ in range(2):  # one by the parser, one by its head alone
            idle.send(request("POST", new_stream(server), b"1", **JSON))
            assert idle.answer().status == 204
        assert idle.is_over()


# Heads that a connection sent before


def test_appends_with_the_same_head_are_all_there(client: RawClient, server: ServerProcess) -> None:
    stream = new_stream(server)
    messages = ["x" * (n * 37 % 300) for n in range(50)]
    for message in messages:
        client.send(request("POST", stream, json.dumps(message).encode(), **JSON))
        assert client.answer().status == 204
    assert httpx.get(server.url + stream).json() == messages


def test_what_differs_from_the_last_head_is_read_anew(client: RawClient, server: ServerProcess) -> None:
    first, second = new_stream(server), new_stream(server)
    for _ in range(3):
        client.send(request("POST", first, b"1", **JSON))
        assert client.answer().status == 204
    for wire, status in (
        (request("POST", second, b"2", **JSON), 204),
        (request("POST", first, b"3", content_type="text/plain"), 409),
        (request("POST", first, b"3", **JSON), 204),
        (request("POST", first, b"3", **JSON), 204),
        (request("POST", first, chunked(b"4"), transfer_encoding="chunked", **JSON), 204),
        (request("POST", first, b"nonsense", **JSON), 400),
        (request("POST", first, b"5", stream_closed="true", **JSON), 204),
        (request("POST", first, b"6", **JSON), 409),
    ):
        client.send(wire)
        assert client.answer().status == status, wire
    assert httpx.get(server.url + first).json() == [1, 1, 1, 3, 3, 4, 5]
    assert httpx.get(server.url + second).json() == [2]


def test_a_repeated_head_may_come_in_pieces_or_with_the_next_request(client: RawClient, server: ServerProcess) -> None:
    stream = new_stream(server)
    whole = request("POST", stream, b'"abc"', **JSON)
    for _ in range(3):
        client.send(whole)
        assert client.answer().status == 204
    for cut in range(1, len(whole), 7):
        client.send(whole[:cut])
        assert not client.hears_something(0.005)
        client.send(whole[cut:])
        assert client.answer().status == 204
    client.send(whole * 5)
    assert [client.answer().status for _ in range(5)] == [204] * 5
    client.send(whole + whole[:-1])
    assert client.answer().status == 204
    client.send(whole[-1:])
    assert client.answer().status == 204
    assert len(httpx.get(server.url + stream).json()) == 3 + len(range(1, len(whole), 7)) + 5 + 2


def test_a_body_that_is_too_large_is_refused_behind_a_repeated_head(client: RawClient, server: ServerProcess) -> None:
    stream = new_stream(server)
    for _ in range(3):
        client.send(request("POST", stream, b"1", **JSON))
        assert client.answer().status == 204
    client.try_send(request("POST", stream, b'"' + b"x" * MAX_BODY + b'"', **JSON))
    assert client.answer().status == 413


def test_a_key_that_was_revoked_ends_appends_on_an_open_connection(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home") as server, httpx.Client(base_url=server.url) as api:
        own = {"authorization": f"Bearer {server.api_key}"}
        made = api.post("/v1/keys", json={"name": "short"}, headers=own).json()
        assert api.put("/v1/stream/revoked", headers={**own, "content-type": "application/json"}).status_code == 201
        append = request("POST", "/v1/stream/revoked", b"1", authorization=f"Bearer {made['key']}", **JSON)
        with RawClient(server.address) as client:
            for _ in range(3):
                client.send(append)
                assert client.answer().status == 204
            assert api.delete(f"/v1/keys/{made['id']}", headers=own).status_code < 300
            client.send(append)
            assert client.answer().status == 401
