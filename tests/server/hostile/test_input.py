"""Whatever comes over the wire, the server answers it or hangs up, goes on serving others, and loses nothing."""

from __future__ import annotations

import json
from random import Random
from urllib.parse import quote

import httpx
import pytest
from tests.server.hostile.witness import JSON, MAX_BODY, Witness, names, new_stream, resident_bytes
from tests.server.raw import TIMEOUT, RawClient, chunked, request

from holdfast.testing.server import ServerProcess

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
    target = new_stream(server) if method == "POST" else f"/v1/stream/hostile/new-{next(names)}"
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
    target = f"/v1/stream/hostile/typed-{next(names)}"
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
    target = f"/v1/stream/__dsomething-{next(names)}"
    for method, status in (("PUT", 201), ("POST", 204), ("GET", 200)):
        body = b"" if method == "GET" else b"{}"
        client.send(request(method, target, body, content_type="application/json"))
        assert client.answer().status == status


@pytest.mark.parametrize(
    "when", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "2030-01-01T00:00:00.9999Z"]
)
def test_times_at_the_edge_of_the_calendar_are_refused_or_kept(client: RawClient, when: str) -> None:
    target = f"/v1/stream/hostile/until-{next(names)}"
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
