"""JSON of a box is refused before parsing it would take long."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.box_json import MOST_BYTES, MOST_VALUES, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(VALUES)
def test_what_is_small_is_read_as_it_is(value: object) -> None:
    assert parse(json.dumps(value).encode()) == value


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"1,", b'{"a":[[1]]},', b'"",'])
def test_many_values_are_refused_however_they_are_written(unit: bytes) -> None:
    with pytest.raises(ValueError, match=f"more than {MOST_VALUES} values"):
        parse(b"[" + unit * (MOST_VALUES + 1) + b"1]", most_bytes=1 << 30)


def test_keys_are_values_too() -> None:
    data = json.dumps({str(number): 1 for number in range(MOST_VALUES + 2)}).encode()
    with pytest.raises(ValueError, match="values"):
        parse(data, most_bytes=1 << 30)


def test_what_is_too_long_or_nested_or_no_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=f"at most {MOST_BYTES}"):
        parse(b'"' + b"x" * MOST_BYTES + b'"')
    for data in (b"[" * 90_000, b'{"a":' * 50_000, b"", b"\xff", b"NaN", b"9" * 5000 + b"x"):
        with pytest.raises(ValueError, match=r".+"):
            parse(data)
