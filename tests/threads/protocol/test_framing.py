"""Messages come back exactly as they were written, and a newline ends a message and nothing else does."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.errors import InvalidRequest, TooLarge
from holdfast.api.limits import MOST_MESSAGES
from holdfast.threads.protocol import framing
from holdfast.threads.protocol.framing import (
    SLICE_MESSAGES,
    as_array,
    frame_json,
    frame_slices,
    parse_messages,
    parse_slices,
    skip_messages,
    split_messages,
)

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
        (b"[ \n]", []),
        (b'["a,b","]"]', [b'"a,b"', b'"]"']),
    ],
)
def test_one_level_of_array_is_flattened(body: bytes, messages: list[bytes]) -> None:
    assert split_messages(frame_json(body)) == messages
    assert split_messages(b"".join(frame_slices(body))) == messages


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"nope", b'"\n"', b"\xff", b"NaN", b"1 2", b"[" * 5000, b"[] []", b"\xef\xbb\xbf[1,2]"),
        *(b"[1,]", b"[1,,2]", b"[,1]", b"[1 2]", b"[1]]", b"[1", b"[1,2", b"[1;2]", b"[NaN,1]", b"[1,\x0b2]"),
        *(b'["\\ud800",1]', b'["\n",1]', b"[1,\xff]", b"[1,%b]" % (b"[" * 5000), b"[1,%b]" % (b"9" * 5000)),
    ],
)
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        frame_json(body)
    with pytest.raises(InvalidRequest):
        b"".join(frame_slices(body))


def test_numbers_that_are_too_long_for_python_are_framed() -> None:
    body = b'[ {"n": -0.%b}, 1 ]' % (b"1" * 5000)
    assert parse_messages(body)[1] == [body[2:-5], b"1"]


@given(
    st.lists(json_values, max_size=12),
    st.sampled_from([None, 1, "\n", "\t"]),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.integers(1, 4),
    st.integers(1, 40),
)
def test_slices_hold_what_the_whole_holds(
    values: list[object], indent: int | str | None, separators: tuple[str, str], messages: int, size: int
) -> None:
    body = json.dumps(values, indent=indent, separators=separators, ensure_ascii=False).encode()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(framing, "SLICE_MESSAGES", messages)
        patched.setattr(framing, "SLICE_BYTES", size)
        slices = list(parse_slices(body))
    assert ([each for values, _ in slices for each in values], [each for _, texts in slices for each in texts]) == (
        parse_messages(body)
    )
    assert all(0 < len(texts) <= messages for _, texts in slices)
    # Without its last message, a slice is shorter than the limit.
    assert all(sum(len(text.decode()) for text in texts[:-1]) < size for _, texts in slices)


@given(st.lists(json_values, min_size=1, max_size=6), st.data())
def test_slices_refuse_what_the_whole_refuses(values: list[object], data: st.DataObject) -> None:
    body = bytearray(json.dumps(values, ensure_ascii=False).encode())
    at = data.draw(st.integers(0, len(body) - 1))
    body[at : at + data.draw(st.integers(0, 2))] = data.draw(
        st.binary(max_size=2) | st.sampled_from([b",", b"]", b"[", b'"', b"}", b":", b" ", b"\\"])
    )
    try:
        whole = parse_messages(bytes(body))
    except InvalidRequest:
        with pytest.raises(InvalidRequest):
            list(parse_slices(bytes(body)))
    else:
        slices = list(parse_slices(bytes(body)))
        assert [each for _, texts in slices for each in texts] == whole[1]


def test_a_slice_is_a_bounded_number_of_messages() -> None:
    slices = list(parse_slices(b"[%b]" % b",".join([b"0"] * MOST_MESSAGES)))
    assert [len(texts) for _, texts in slices[:-1]] == [SLICE_MESSAGES] * (MOST_MESSAGES // SLICE_MESSAGES)


def test_too_many_messages_are_refused_before_the_rest_is_read() -> None:
    body = b"[%b, this is not JSON" % b",".join([b"0"] * (MOST_MESSAGES + SLICE_MESSAGES))
    with pytest.raises(TooLarge, match="more than 20000 messages in one append"):
        list(parse_slices(body))


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
