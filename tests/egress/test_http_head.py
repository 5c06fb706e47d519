"""Heads, whatever bytes they are made of: understood in one way only, or refused."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.egress.http_head import BadHead, Request, host_name, parse_authority, parse_request, parse_response

_PIECES = st.sampled_from(
    [b"GET", b"CONNECT", b" ", b"http://", b"a.example.com", b":80", b"/", b"HTTP/1.1", b"\r\n", b"\n", b"\r",
     b"Host: ",
     b"Content-Length: 5", b"Transfer-Encoding: chunked", b"\t", b"\0", b"x", b"[::1]", b"@", b"Connection: ", b"\x80"]
)  # fmt: skip


@given(st.lists(_PIECES, max_size=30).map(b"".join) | st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(head: bytes) -> None:
    with contextlib.suppress(BadHead):
        request = parse_request(head)
        if request.method != "CONNECT":
            _reads_the_same(request)
    with contextlib.suppress(BadHead):
        parse_response(head, "GET")


@given(
    st.sampled_from(["GET", "POST", "DELETE"]),
    st.lists(
        st.tuples(
            st.sampled_from(["X-One", "Accept", "Connection", "Proxy-Thing", "TE", "Cookie", "Upgrade"]),
            st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=20),
        ),
        max_size=8,
    ),
)
def test_what_goes_out_reads_as_what_came_in(method: str, headers: list[tuple[str, str]]) -> None:
    lines = [f"{method} http://a.example.com/p HTTP/1.1", "Host: a.example.com", *(f"{n}: {v}" for n, v in headers)]
    _reads_the_same(parse_request("\r\n".join(lines).encode()))


def _reads_the_same(request: Request) -> None:
    """As a server reads it: one line for each header, and the same end of the body."""
    out = request.to_bytes()
    assert out.endswith(b"\r\n\r\n")
    assert out.count(b"\r\n\r\n") == 1
    assert b"\n" not in out.replace(b"\r\n", b"")
    assert b"\r" not in out.replace(b"\r\n", b"")
    authority = out.split(b"\r\nHost: ")[1].split(b"\r\n")[0]
    assert parse_authority(authority, 80) == (request.host, request.port)
    again = parse_request(out[:-4].replace(b" /", b" http://" + authority + b"/", 1))
    assert (again.host, again.port, again.path, again.body) == (request.host, request.port, request.path, request.body)
    assert not any(name.lower().startswith(b"proxy-") for name, _ in again.headers)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("EXAMPLE.com.", "example.com"), ("127.0.0.1", "127.0.0.1"), ("::0001", "::1"), ("xn--bcher-kva.example",) * 2,
        ("a_b.example", "a_b.example"),
    ],
)  # fmt: skip
def test_names_have_one_form(text: str, name: str) -> None:
    assert host_name(text) == name


@pytest.mark.parametrize(
    "text",
    ["", ".", "a..b", "-a.example", "a b", "a/b", "a\\b", "127.1", "0x7f.1", "1.2.3.4.5", "a" * 64, "ex%61mple", "é"],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(BadHead):
        host_name(text)
