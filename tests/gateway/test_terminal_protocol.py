"""The `tty` subprotocol by table."""

from __future__ import annotations

import pytest

from holdfast.api.errors import InvalidRequest
from holdfast.gateway.terminal.protocol import Flow, Hello, Input, Message, Resize, parse, parse_hello


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"AuthToken":"","columns":100,"rows":40}', Hello(100, 40)),
        (b"{}", Hello(80, 24)),
        (b'{"columns":1,"rows":1000,"offset":7,"more":[]}', Hello(1, 1000, 7)),
    ],
)
def test_the_first_message_has_the_size_of_the_window(data: bytes, expected: Hello) -> None:
    assert parse_hello(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"", b"0ls", b"[]", b"{", b'{"columns":0}', b'{"rows":1001}', b'{"rows":"24"}', b'{"rows":true}',
        b'{"offset":-1}', b'{"offset":1e3}', b'{"offset":99999999999999999999}', b"{" + b" " * 20_000 + b"}",
        b'{"a":' * 9000,
    ],
)  # fmt: skip
def test_another_first_message_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_hello(data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"0ls\r", Input(b"ls\r")),
        (b"0", Input(b"")),
        (b'1{"columns":5,"rows":6}', Resize(5, 6)),
        (b"2", Flow(paused=True)),
        (b"3", Flow(paused=False)),
        (b"9?", None),
        (b"", None),
    ],
)
def test_the_first_byte_tells_what_a_message_is(data: bytes, expected: Message | None) -> None:
    assert parse(data) == expected


@pytest.mark.parametrize("data", [b"1", b"1[]", b'1{"columns":-1}', b'1{"rows":99999}'])
def test_a_size_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse(data)
