"""Secrets are removed from answers however they are cut into pieces, and lengths stay as they are."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast.redaction import Scrubber

KEYS = ("abababababababab", "ababababababababXY", "0123456789abcdef", "bXY0123456789abcdef")
TEXTS = st.lists(st.sampled_from([*KEYS, "ab", "0123456789", "abababab", "b", "XY", "f", "é"]), max_size=12).map(
    "".join
)


def fed(pieces: list[bytes]) -> bytes:
    scrub = Scrubber(*KEYS, None, "short")
    return b"".join([*(scrub.feed(piece) for piece in pieces), scrub.rest()])


@given(TEXTS, st.lists(st.integers(0, 200), max_size=20))
def test_no_way_to_cut_an_answer_lets_a_key_through(text: str, cuts: list[int]) -> None:
    data = text.encode()
    at = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    cleaned = fed([data[start:end] for start, end in itertools.pairwise(at)])
    assert len(cleaned) == len(data)
    assert not any(key.encode() in cleaned for key in KEYS)


def test_what_is_no_key_is_passed_on_at_once() -> None:
    scrub = Scrubber("0123456789abcdef")
    assert scrub.feed(b"data: 0123") == b"data: "
    assert scrub.feed(b"x\n\n") == b"0123x\n\n"
    assert scrub.feed(b"0123456789abcdef!") == b"*" * 16 + b"!"
    assert scrub.rest() == b""


def test_a_text_is_cleaned_whole_and_short_words_stay() -> None:
    assert Scrubber("0123456789abcdef", "short").text("short 0123456789abcdef") == "short ****************"
    assert Scrubber(None).text("0123456789abcdef") == "0123456789abcdef"
