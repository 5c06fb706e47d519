"""Whatever comes over the wire, the server answers it or hangs up, goes on serving others, and loses nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from urllib.parse import quote

import httpx
import pytest
from tests.server.raw import TIMEOUT, RawClient, chunked, request

from holdfast.testing.server import ServerProcess

MAX_BODY = 1_000_000
JSON = {"content_type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("hostile") / "home"
    with ServerProcess(home, auth=False, max_body=MAX_BODY, long_poll_timeout=0.5, log_level="debug") as server:
        yield server


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One that waits a second for a request to arrive."""
    with ServerProcess(tmp_path_factory.mktemp("impatient") / "home", auth=False, request_timeout=1.0) as server:
        yield server


class Witness:
    """A stream and a thread that are there before something bad happens, and are to be there afterwards."""

    def __init__(self, server: ServerProcess, name: str) -> None:
        self._server = server
        self._logged = len(server.read_log())
        self._http = httpx.Client(base_url=server.url, timeout=TIMEOUT)
        self.stream = f"/v1/stream/witness/{name}"
        self.thread = f"t-witness-{name}"
        self._expected = [{"n": n} for n in range(3)]
        assert self._http.put(self.stream, json=self._expected).status_code == 201
        assert self._http.post("/v1/threads", json={"id": self.thread}).status_code == 201

    def check(self) -> None:
        """The server answers, has what it had, takes more, and found nothing that it did not expect."""
        assert self._http.get("/health").json()["status"] == "ok"
        assert self._http.get(self.stream).json() == self._expected
        assert self._http.get(f"/v1/threads/{self.thread}").json()["entryCount"] == 1
        assert self._http.post(self.stream, json={"n": "more"}).status_code == 204
        assert self._http.get(self.stream).json() == [*self._expected, {"n": "more"}]
        self._http.close()
        log = self._server.read_log()[self._logged :]
        unexpected = [line for line in log.splitlines() if '"level": "error"' in line or "Traceback" in line]
        assert not unexpected, "\n".join(unexpected)


_names = iter(range(1_000_000))


@pytest.fixture
def witness(server: ServerProcess) -> Iterator[Witness]:
    witness = Witness(server, str(next(_names)))
    yield witness
    witness.check()


@pytest.fixture
def client(server: ServerProcess, witness: Witness) -> Iterator[RawClient]:
    with RawClient(server.address) as client:
        yield client


def new_stream(server: ServerProcess, content_type: str = "application/json") -> str:
    target = f"/v1/stream/hostile/{next(_names)}"
    created = httpx.put(server.url + target, headers={"content-type": content_type}, timeout=TIMEOUT)
    assert created.status_code == 201
    return target


# Bodies

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body",
    [b"{", b"[1,", b"nul", b"\xff\xfe", b'{"a": NaN}', b"1 2", b'"\xed\xa0\x80"', b"\x00", b" ", b"[]", b"[1,]", DEEP],
    ids=lambda body: repr(body[:16]),
)
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_malformed_json_is_refused_on_a_stream(
    client: RawClient, server: ServerProcess, method: str, body: bytes
) -> None:
    target = new_stream(server) if method == "POST" else f"/v1/stream/hostile/new-{next(_names)}"
    client.send(request(method, target, body, **JSON))
    answer = client.answer()
    if (method, body) == ("PUT", b"[]"):
        assert answer.status == 201  # a new stream may say that it has nothing yet
        return
    assert (answer.status, answer.error) == (400, "invalid_request")
    client.send(request("GET", target))
    after = client.answer()
    assert (after.status, after.body) == ((200, b"[]") if method == "POST" else (404, after.body))


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (b"{", {400}),
        (b"\xff", {400}),
        (b"", {422}),
        (b"[]", {422}),
        (b"null", {422}),
        (b'{"title": 5}', {422}),
        (b'{"title": "\\ud800"}', {400, 422}),
        (b'{"\\ud800": 1}', {400, 422}),
        (b'{"labels": {"\\udfff": "x"}}', {400, 422}),
        (b'{"id": "../x"}', {422}),
        (b'{"id": "a\\u0000b"}', {422}),
        (b'{"unknown": 1}', {422}),
        (b'{"title": ' + DEEP + b"}", {400, 422}),
        (b'{"title": ' + b"9" * 5000 + b"}", {400, 422}),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
def test_malformed_json_is_refused_by_rest(client: RawClient, body: bytes, statuses: set[int]) -> None:
    client.send(request("POST", "/v1/threads", body, content_type="application/json", content_length=str(len(body))))
    answer = client.answer()
    assert answer.status in statuses
    assert answer.error == "invalid_request"


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
@pytest.mark.parametrize("surface", ["stream", "rest"])
def test_a_body_over_the_limit_is_refused_and_the_answer_arrives(
    server: ServerProcess, witness: Witness, surface: str, framing: str
) -> None:
    target = new_stream(server) if surface == "stream" else "/v1/threads"
    body = b'"' + b"x" * (3 * MAX_BODY) + b'"'
    for _ in range(5):  # whether an answer is overtaken by a reset is a matter of luck
        with RawClient(server.address) as client:
            if framing == "chunked":
                client.try_send(request("POST", target, transfer_encoding="chunked", **JSON))
                client.try_send(chunked(body))
            else:
                client.try_send(request("POST", target, body, **JSON))
            answer = client.answer()
            assert (answer.status, answer.error) == (413, "too_large")
            if answer.headers.get("connection") == "close":
                assert client.is_over()
            else:
                client.send(request("GET", "/health"))
                assert client.answer().status == 200


def test_a_body_at_the_limit_is_taken(client: RawClient, server: ServerProcess) -> None:
    target = new_stream(server, "application/octet-stream")
    body = b"x" * MAX_BODY
    client.send(request("POST", target, body, content_type="application/octet-stream"))
    assert client.answer().status == 204
    client.send(request("POST", target, transfer_encoding="chunked", content_type="application/octet-stream"))
    client.send(chunked(body))
    assert client.answer().status == 204
    client.send(request("GET", target))
    assert client.answer().body == body + body


def test_a_body_that_is_announced_too_large_is_not_asked_for(client: RawClient, server: ServerProcess) -> None:
    length = str(MAX_BODY + 1)
    client.send(request("POST", new_stream(server), expect="100-continue", content_length=length, **JSON))
    assert client.answer().status == 413


@pytest.mark.parametrize("surface", ["stream", "rest"])
def test_a_body_that_is_waited_for_is_asked_for(client: RawClient, server: ServerProcess, surface: str) -> None:
    target, right = (new_stream(server), 204) if surface == "stream" else ("/v1/threads", 201)
    client.send(request("POST", target, expect="100-continue", content_length="2", **JSON))
    assert client.head()[0] == 100
    client.send(b"{}")
    assert client.answer().status == right


@pytest.mark.parametrize(
    ("content_type", "status", "code"),
    [
        ("", 400, "invalid_request"),
        ("text/plain", 409, "content_type_mismatch"),
        ("application/x-unknown", 409, "content_type_mismatch"),
        ("application", 409, "content_type_mismatch"),
        (";;;", 409, "content_type_mismatch"),
        ("application/json/json", 409, "content_type_mismatch"),
        ("\xff\xfe", 409, "content_type_mismatch"),
        ("a" * 30_000 + "/b", 409, "content_type_mismatch"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else None,
)
def test_other_content_types_are_refused(
    client: RawClient, server: ServerProcess, content_type: str, status: int, code: str
) -> None:
    client.send(request("POST", new_stream(server), b"{}", content_type=content_type))
    answer = client.answer()
    assert (answer.status, answer.error) == (status, code)


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/json;"])
def test_the_same_content_type_in_other_words_is_taken(
    client: RawClient, server: ServerProcess, content_type: str
) -> None:
    client.send(request("POST", new_stream(server), b"{}", content_type=content_type))
    assert client.answer().status == 204


@pytest.mark.parametrize("content_type", ["", ";;;", "nonsense", "\xff", "text/html; x=\xe9", 'a/b; c="d\te"'])
def test_a_stream_can_be_made_with_any_content_type_and_read_back(client: RawClient, content_type: str) -> None:
    target = f"/v1/stream/hostile/typed-{next(_names)}"
    client.send(request("PUT", target, b"bytes", content_type=content_type))
    assert client.answer().status == 201
    client.send(request("GET", target))
    answer = client.answer()
    assert (answer.status, answer.body) == (200, b"bytes")
    assert "/" in answer.headers["content-type"]


# Heads


def test_one_huge_header_is_refused(client: RawClient) -> None:
    client.try_send(request("GET", "/v1/stream/x", huge="x" * 100_000))
    answer = client.answer()
    assert (answer.status, answer.error) == (431, "headers_too_large")
    assert client.is_over()


@pytest.mark.parametrize("target", ["/v1/stream/x", "/health"])
def test_too_many_headers_are_refused(client: RawClient, target: str) -> None:
    client.try_send(request("GET", target, **{f"h{n}": "x" * 50 for n in range(2_000)}))
    answer = client.answer()
    assert (answer.status, answer.error) == (431, "headers_too_large")
    assert client.is_over()


@pytest.mark.parametrize("target", ["/v1/stream/", "/"])
def test_a_long_url_is_refused(client: RawClient, target: str) -> None:
    client.try_send(request("GET", target + "x" * 20_000))
    answer = client.answer()
    assert (answer.status, answer.error) == (414, "uri_too_long")
    assert client.is_over()


@pytest.mark.parametrize(
    ("beginning", "status"),
    [
        (b"GET /v1/stream/", 414),
        (b"GET /v1/stream/x HTTP/1.1\r\nendless", 431),
        (b"GET /v1/stream/x HTTP/1.1\r\nhost: ", 431),
        (b"GET /health HTTP/1.1\r\nhost: ", 431),
    ],
)
def test_what_never_ends_is_ended(server: ServerProcess, witness: Witness, beginning: bytes, status: int) -> None:
    """The server's memory must not be what ends it."""
    before = resident_bytes(server)
    with RawClient(server.address) as client:
        client.send(beginning)
        for _ in range(400):
            client.try_send(b"x" * 100_000)
        answer = client.answer()
        assert answer.status == status
    assert resident_bytes(server) - before < 10_000_000


def test_headers_as_large_as_allowed_are_taken(client: RawClient) -> None:
    client.send(request("GET", "/health", large="x" * 60_000))
    assert client.answer().status == 200


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("PATCH", "/v1/stream/x", {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}),
        ("TRACE", "/v1/stream/x", {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}),
        ("PROPFIND", "/v1/stream/x", {"GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"}),
        ("DELETE", "/v1/threads", {"GET", "POST"}),
        ("PUT", "/v1/threads/t-x", {"GET", "PATCH", "DELETE"}),
        ("POST", "/health", {"GET"}),
    ],
)
def test_other_methods_are_refused_with_those_there_are(
    client: RawClient, method: str, target: str, allowed: set[str]
) -> None:
    client.send(request(method, target))
    answer = client.answer()
    assert answer.status == 405
    assert {name.strip() for name in answer.headers["allow"].split(",")} == allowed
    assert answer.error == "method_not_allowed"


# Offsets and paths


@pytest.mark.parametrize(
    "query",
    [
        "offset=",
        "offset=abc",
        "offset=0",
        "offset=-2",
        "offset=0000000000000000_",
        "offset=0000000000000000_000000000000000x",
        "offset=0000000000000000_9999999999999999",
        "offset=0000000000000000_0000000000000003",
        "offset=0000000000000001_0000000000000000",
        "offset=" + quote("0000000000000000_٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠"),
        "offset=%00",
        "offset=%ff",
        "offset=-1&offset=-1",
        "offset=" + "9" * 10_000,
        "offset=-1&live=maybe",
        "live=long-poll",
        "live=sse",
        "offset=abc&live=sse",
        "offset=0000000000000000_9999999999999999&live=sse",
        "offset=0000000000000000_0000000000000003&live=sse",
        "offset=abc&live=long-poll",
        "offset=-1&live=sse&live=sse",
        "&".join(f"q{n}=1" for n in range(1_000)),
        "\xff",
    ],
    ids=lambda query: query[:48],
)
def test_bad_offsets_are_refused(client: RawClient, witness: Witness, query: str) -> None:
    client.send(request("GET", f"{witness.stream}?{query}"))
    answer = client.answer()
    assert (answer.status, answer.error) in {(400, "invalid_request"), (400, "bad_request")}


@pytest.mark.parametrize("query", ["alive=sse", "live%20=sse", "offset=-1&relive=sse", "", "?", "offset=-1&x=live=sse"])
def test_other_queries_are_none_of_its_business(client: RawClient, witness: Witness, query: str) -> None:
    client.send(request("GET", f"{witness.stream}?{query}"))
    answer = client.answer()
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert json.loads(answer.body) == [{"n": 0}, {"n": 1}, {"n": 2}]


@pytest.mark.parametrize("since", ["abc", "", "0000000000000000_9999999999999999", "0000000000000000_0000000000000003"])
def test_bad_offsets_are_refused_by_rest(client: RawClient, witness: Witness, since: str) -> None:
    client.send(request("GET", f"/v1/threads/{witness.thread}/entries?since={since}"))
    answer = client.answer()
    assert (answer.status, answer.error) == (400, "invalid_request")


BAD_PATHS = [
    "",
    ".",
    "..",
    "../threads",
    "a/../b",
    "a/..",
    "%2e%2e",
    "%2E%2E/etc/passwd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "a%2f%2e%2e%2fb",
    "a//b",
    "/a",
    "a/",
    "%00",
    "a%00b",
    "a%0d%0ab",
    "a%7fb",
    "%ff",
    "%c3%28",
    "%ed%a0%80",
    "a\xffb",
    "x" * 1_100,
    "threads/",
    "threads/..",
    "threads/%2e%2e",
    "threads/a/b",
    "threads/a%2fb",
    "threads/a.b",
    "threads/" + "x" * 129,
]


@pytest.mark.parametrize("method", ["PUT", "POST", "GET", "DELETE"])
@pytest.mark.parametrize("path", BAD_PATHS, ids=lambda path: path[:32] or "nothing")
def test_bad_paths_are_refused(client: RawClient, method: str, path: str) -> None:
    body = b"{}" if method in ("PUT", "POST") else b""
    client.send(request(method, f"/v1/stream/{path}", body, content_type="application/json"))
    answer = client.answer()
    assert (answer.status, answer.error) in {(400, "invalid_request"), (400, "bad_request")}


@pytest.mark.parametrize(
    "target",
    ["/v1/stream", "/v1/stream/../health", "/v1/../health", "//health", "/v1//threads", "/%2e%2e/health", "/health%00"],
)
def test_paths_are_not_resolved(client: RawClient, target: str) -> None:
    client.send(request("GET", target))
    answer = client.answer()
    assert answer.status in (400, 404)
    assert answer.error in ("invalid_request", "not_found")


@pytest.mark.parametrize("id", ["..", "%2e%2e", "%00", "%ff", "a%2fb", "a.b", "x" * 129, "%0a"])
def test_bad_thread_ids_are_refused_by_rest(client: RawClient, id: str) -> None:
    client.send(request("GET", f"/v1/threads/{id}"))
    assert client.answer().status in (400, 404, 422)


def test_a_stream_may_be_named_like_the_reserved_folder(client: RawClient) -> None:
    target = f"/v1/stream/__dsomething-{next(_names)}"
    for method, status in (("PUT", 201), ("POST", 204), ("GET", 200)):
        body = b"" if method == "GET" else b"{}"
        client.send(request(method, target, body, content_type="application/json"))
        assert client.answer().status == status


@pytest.mark.parametrize(
    "when", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2030-01-01T00:00:00.9999Z"]
)
def test_times_at_the_edge_of_the_calendar_are_refused_or_kept(client: RawClient, when: str) -> None:
    target = f"/v1/stream/hostile/until-{next(_names)}"
    client.send(request("PUT", target, b"{}", stream_expires_at=when, **JSON))
    assert client.answer().status in (201, 400)
    client.send(request("HEAD", target))
    assert client.answer("HEAD").status in (200, 404)


# Framing


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 2\r\ncontent-length: 3",
        b"content-length: -1",
        b"content-length: +2",
        b"content-length: 2, 2",
        b"content-length: 99999999999999999999999",
        b"content-length: 0x2",
        b"content-length: 2\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
        b"bad header: x",
        b": x",
        b"content-length : 2",
        b"x: a\x00b",
    ],
)
@pytest.mark.parametrize("surface", ["stream", "rest"])
def test_framing_that_can_be_read_in_two_ways_is_refused(
    client: RawClient, server: ServerProcess, surface: str, headers: bytes
) -> None:
    target = new_stream(server) if surface == "stream" else "/v1/threads"
    head = f"POST {target} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n".encode()
    client.send(head + headers + b"\r\n\r\n{}")
    answer = client.answer()
    assert (answer.status, answer.error) == (400, "bad_request")
    assert client.is_over()


@pytest.mark.parametrize(
    "chunks", [b"zz\r\n{}\r\n0\r\n\r\n", b"2\r\n{}xx0\r\n\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n{}"]
)
def test_bad_chunks_are_refused(client: RawClient, server: ServerProcess, chunks: bytes) -> None:
    target = new_stream(server)
    client.send(request("POST", target, transfer_encoding="chunked", **JSON) + chunks)
    answer = client.answer()
    assert (answer.status, answer.error) == (400, "bad_request")
    assert httpx.get(server.url + target, timeout=TIMEOUT).json() == []


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00" * 100,
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"BREW /v1/stream/x HTTP/1.1\r\n\r\n",
    b"get /v1/stream/x HTTP/1.1\r\n\r\n",
    b"\r\n\r\n\r\nx\r\n\r\n",
    "GÉT / HTTP/1.1\r\n\r\n".encode(),
    Random(1).randbytes(4096),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: repr(garbage[:20]))
def test_garbage_is_refused(client: RawClient, garbage: bytes) -> None:
    client.try_send(garbage)
    answer = client.answer()
    assert (answer.status, answer.error) == (400, "bad_request")
    assert client.is_over()


@pytest.mark.parametrize("offered", ["h2c", "websocket", "TLS/1.0", "nonsense"])
@pytest.mark.parametrize("target", ["/health", "/v1/stream/hostile/upgrade"])
def test_an_upgrade_is_not_taken_up(client: RawClient, server: ServerProcess, target: str, offered: str) -> None:
    httpx.put(f"{server.url}/v1/stream/hostile/upgrade", json=[], timeout=TIMEOUT)
    client.send(
        request("GET", target, upgrade=offered, connection="Upgrade, HTTP2-Settings", http2_settings="AAMAAABk")
    )
    answer = client.answer()
    assert answer.status == 200
    if answer.headers.get("connection") == "close":
        assert client.is_over()
    else:
        client.send(request("GET", target))
        assert client.answer().status == 200


def test_http_1_0_gets_an_answer_and_an_end(client: RawClient, witness: Witness) -> None:
    client.send(f"GET {witness.stream} HTTP/1.0\r\n\r\n".encode())
    answer = client.answer()
    assert (answer.status, json.loads(answer.body)) == (200, [{"n": 0}, {"n": 1}, {"n": 2}])
    assert client.is_over()


def test_http_1_0_gets_live_reads_without_chunks(client: RawClient, server: ServerProcess) -> None:
    target = new_stream(server)
    httpx.post(server.url + target, json={"n": 1}, headers={"stream-closed": "true"}, timeout=TIMEOUT)
    client.send(f"GET {target}?offset=-1&live=sse HTTP/1.0\r\n\r\n".encode())
    status, headers = client.head()
    assert status == 200
    assert "transfer-encoding" not in headers
    assert client.rest().startswith(b'event: data\ndata:[{"n":1}]\n\nevent: control\n')


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
            (request("POST", "/v1/threads", b'{"x":1}', **JSON), 422, lambda body: b"extra" in body.lower()),
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


def resident_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


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
        ({"host": "127.0.0.1", "origin": "http://localhost:3000"}, 200),
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
