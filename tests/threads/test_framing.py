"""Messages come back exactly as they were written, and a newline ends a message and nothing else does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.threads.errors import InvalidRequest
from holdfast.threads.framing import as_array, frame_json, skip_messages, split_messages

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("body", "messages"),
    [
        (b'{"a":1}', [b'{"a":1}']),
        (b' {"a":\n\r 1} \n', [b'{"a": 1}']),
        (b"[1,2,3]", [b"1", b"2", b"3"]),
        (b"[ 1 , [2, 3],\n {} ]", [b"1", b"[2, 3]", b"{}"]),
        (b"[[1,2],[3,4]]", [b"[1,2]", b"[3,4]"]),
        (b"[[[1,2,3]]]", [b"[[1,2,3]]"]),
        (b'"text"', [b'"text"']),
        (b"null", [b"null"]),
        (b"[]", []),
        (b'["a,b","]"]', [b'"a,b"', b'"]"']),
    ],
)
def test_one_level_of_array_is_flattened(body: bytes, messages: list[bytes]) -> None:
    assert split_messages(frame_json(body)) == messages


@pytest.mark.parametrize("body", [b"", b"{", b"[1,]", b"nope", b'"\n"', b"\xff", b"NaN", b"1 2", b"[" * 5000])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        frame_json(body)


def test_numbers_keep_every_digit() -> None:
    body = b'[{"n":123456789012345678901234567890}, {"f":1.10000000000000000001}]'
    assert split_messages(frame_json(body)) == [
        b'{"n":123456789012345678901234567890}',
        b'{"f":1.10000000000000000001}',
    ]


@given(st.lists(json_values, min_size=1, max_size=6), st.sampled_from([None, 1, "\n", "\t"]), st.booleans())
def test_messages_survive_framing(values: list[object], indent: int | str | None, ascii_only: bool) -> None:
    body = json.dumps(values, indent=indent, ensure_ascii=ascii_only).encode()
    framed = frame_json(body)
    assert framed.count(b"\n") == len(values)
    assert json.loads(as_array(framed)) == values
    assert [json.loads(message) for message in split_messages(framed)] == values


@given(st.lists(json_values, min_size=1, max_size=6), st.integers(0, 8))
def test_skipping_messages_lands_between_two(values: list[object], count: int) -> None:
    framed = frame_json(json.dumps(values).encode())
    position = skip_messages(framed, count)
    if count > len(values):
        assert position is None
    else:
        assert json.loads(as_array(framed[position:])) == values[count:]
