"""A head that is taken as known means what the parser would have read."""

from __future__ import annotations

import contextlib
from typing import Any

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.server.wire.http_protocol import RepeatedHead
from holdfast.threads.protocol.messages import Request

HEAD = b"POST /v1/stream/s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\nContent-Type: application/json\r\n\r\n"


def whole(body: bytes, head: bytes = HEAD) -> bytes:
    return head % len(body) + body


class Parsed:
    """What the parser reads in some bytes, as far as they are one whole request."""

    def __init__(self, data: bytes) -> None:
        self.url, self.body, self.headers = b"", b"", {}  # type: bytes, bytes, dict[bytes, bytes]
        self.complete = 0
        self.parser = httptools.HttpRequestParser(self)
        with contextlib.suppress(httptools.HttpParserError):  # what comes after a request may be none
            self.parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def learn(data: bytes) -> RepeatedHead | None:
    parsed: Any = Parsed(data)
    return RepeatedHead.learn(data, Request("POST", "", b"", parsed.headers), "s")


@pytest.mark.parametrize("size", [0, 1, 9, 10, 200, 16_000, 1_000_000])
def test_the_next_body_is_found_whatever_its_length(size: int) -> None:
    head = learn(whole(b"first"))
    assert head is not None
    assert head.body_in(whole(b"x" * size)) == b"x" * size


@pytest.mark.parametrize(
    "data",
    [
        HEAD % 4 + b"first",
        HEAD % 5 + b"firs",
        whole(b"first")[:-6],
        whole(b"first") * 2,
        b"\r\n\r\n" + whole(b"first"),
        b"POST /v1/stream/s HTTP/1.1\r\nHost: h\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\n\r\n",
    ],
)
def test_nothing_is_learned_of_what_is_not_one_whole_request(data: bytes) -> None:
    assert learn(data) is None


def test_a_length_that_stands_in_another_header_is_not_taken_for_the_length() -> None:
    head = learn(whole(b"first", b"POST / HTTP/1.1\r\nX-Content-Length: 7\r\ncontent-length:  %d\r\n\r\n"))
    assert head is not None
    assert head.body_in(b"POST / HTTP/1.1\r\nX-Content-Length: 7\r\ncontent-length:  2\r\n\r\nab") == b"ab"
    assert head.body_in(b"POST / HTTP/1.1\r\nX-Content-Length: 2\r\ncontent-length:  2\r\n\r\nab") is None


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A request like the one learned, with a few bytes replaced, removed or put in, mostly in its head."""
    data = bytearray(whole(draw(st.binary(max_size=40))))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data) - 1))
        piece = draw(
            st.sampled_from([b"", b"0", b"1", b"9", b" ", b"\r\n", b"\n", b":", b"x", b"-", b"+", b"_", b"\t"])
        )
        data[at : at + draw(st.integers(0, 2))] = piece
    return bytes(data)


@given(mutations())
def test_what_is_taken_as_known_is_what_the_parser_reads(data: bytes) -> None:
    head = learn(whole(b"first"))
    assert head is not None
    body = head.body_in(data)
    if body is None:
        return
    parsed = Parsed(data)
    assert (parsed.complete, parsed.url, parsed.body) == (1, b"/v1/stream/s", body)
    expected = {b"host": b"127.0.0.1", b"content-type": b"application/json", b"content-length": b"%d" % len(body)}
    length = parsed.headers[b"content-length"]
    assert {**parsed.headers, b"content-length": b"%d" % int(length)} == expected
