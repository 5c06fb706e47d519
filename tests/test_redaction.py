"""Secrets are removed from answers however they are cut into pieces, and lengths stay as they are."""

from __future__ import annotations

import html
import itertools
import json
import re
import time
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given, settings
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


# --- a key that others escape ---

ODD = "p\"a'ss<w>o&r/d+=\\%é😀\\\\end"
"""Has every kind of character that somebody escapes."""


def _as_json(text: str, slash: str = "/") -> str:
    return json.dumps(text)[1:-1].replace("/", slash)


def _percent(text: str) -> str:
    return quote(text, safe="")


SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "json": _as_json,
    "json with escaped slashes": lambda text: _as_json(text, "\\/"),
    "json for a page": lambda text: "".join(f"\\u{ord(each):04x}" if each in "<>&'\"\\" else each for each in text),
    "json for a page, upper case": lambda text: "".join(
        f"\\u{ord(each):04X}" if not each.isalnum() and ord(each) < 0x10000 else each for each in text
    ),
    "json in json": lambda text: _as_json(_as_json(text)),
    "javascript": lambda text: re.sub(r"[^\w\x80-\U0010ffff]", lambda found: f"\\x{ord(found[0]):02x}", text),
    "percent": _percent,
    "percent, lower case": lambda text: re.sub("%..", lambda found: found[0].lower(), _percent(text)),
    "percent, twice": lambda text: _percent(_percent(text)),
    "percent, as urllib leaves slashes": quote,
    "html": html.escape,
    "html by number": lambda text: re.sub("[^a-z]", lambda found: f"&#{ord(found[0])};", text),
    "html by number, with zeros": lambda text: text.replace('"', "&#034;").replace("<", "&#0060;"),
    "html by hexadecimal number": lambda text: text.replace('"', "&#x22;").replace("/", "&#X2f;"),
    "html, twice": lambda text: html.escape(html.escape(text)),
    "html in json": lambda text: _as_json(html.escape(text)),
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_key_is_found_however_it_is_escaped_and_cut(spelling: str, size: int) -> None:
    written = SPELLINGS[spelling](ODD).encode()
    data = b"before " + written + b" after"
    scrub = Scrubber(ODD)
    cleaned = b"".join(scrub.feed(data[at : at + size]) for at in range(0, len(data), size)) + scrub.rest()
    assert cleaned == b"before " + b"*" * len(written) + b" after"
    assert Scrubber(ODD).text(written.decode()) == "*" * len(written)


@settings(max_examples=25)
@given(st.text("ab0/+\"'\\%&<> é😀-", min_size=16, max_size=24), st.data())
def test_any_mixture_of_spellings_is_found(key: str, data: st.DataObject) -> None:
    """Each character in a spelling of its own; backslashes in a row in the same one."""
    spelled = []
    for part in re.findall(r"\\+|[^\\]", key):
        ways = [part, _as_json(part), _percent(part), _percent(part).lower(), html.escape(part)]
        ways.append(f"&#{ord(part[0])};" * len(part))
        spelled.append(data.draw(st.sampled_from(ways)) if not part.isalnum() else part)
    written = "".join(spelled).encode()
    cut = data.draw(st.integers(0, len(written)))
    scrub = Scrubber(key)
    cleaned = scrub.feed(written[:cut]) + scrub.feed(written[cut:] + b"!") + scrub.rest()
    assert cleaned == b"*" * len(written) + b"!"


def test_an_escape_that_is_no_part_of_a_key_is_passed_on_at_once() -> None:
    scrub = Scrubber("sk-0123456789/abcdef")
    for piece in (b'{"a": "b\\n"}', b"100%", b"a&amp;b &lt", b"sk", b" no key", b"sk%2", b"0x", b"\\u00"):
        scrub.feed(piece)
    assert scrub.feed(b"x") == b"x"
    assert scrub.feed(b"sk%2") == b""
    assert scrub.feed(b"0") == b"sk%20"


def test_a_hostile_answer_takes_no_longer_than_any_other() -> None:
    """No way to write it makes the search try one way after the other."""
    scrub = Scrubber("\\\\\\\\//%%&&" * 4)
    for piece in (b"\\", b"%25", b"&amp;", b"\\\\//", b"&#000", b"%5c"):
        began = time.process_time()
        scrub.feed(piece * (200_000 // len(piece)))
        scrub.rest()
        assert time.process_time() - began < 2
