"""What is not seen is shown: characters that hide, reorder or control text."""

from __future__ import annotations

import sys
import unicodedata

import pytest

from holdfast.visible_text import is_visible, visible


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain ASCII", "plain ASCII"),
        ("Größe, 宽, עברית, العربية, é", "Größe, 宽, עברית, العربية, é"),
        ("lines\n\tand tabs", "lines\n\tand tabs"),
        ("rm\u200b -rf", "rm⟨200B⟩ -rf"),
        ("soft\u00adhyphen", "soft⟨00AD⟩hyphen"),
        ("if admin\u202e /* \u2066", "if admin⟨202E⟩ /* ⟨2066⟩"),
        ("\u061cmark", "⟨061C⟩mark"),
        ("a\ufeffb\u2060c\u180ed", "a⟨FEFF⟩b⟨2060⟩c⟨180E⟩d"),
        ("tags\U000e0041\U000e0042", "tags⟨E0041⟩⟨E0042⟩"),
        ("fillers\u3164\uffa0\u115f\u2800", "fillers⟨3164⟩⟨FFA0⟩⟨115F⟩⟨2800⟩"),
        ("bytes in styles\ufe00\ufe01\U000e0100", "bytes in styles⟨FE00⟩⟨FE01⟩⟨E0100⟩"),
        ("lines\u2028and\u2029paragraphs\x85", "lines⟨2028⟩and⟨2029⟩paragraphs⟨0085⟩"),
        ("\x1b[2J", "⟨001B⟩[2J"),
        ("\ud800", "⟨D800⟩"),
        ("no\u00a0break\u3000wide", "no break wide"),
        ("⚠\ufe0f done ✔\ufe0e 1\ufe0f\u20e3", "⚠\ufe0f done ✔\ufe0e 1\ufe0f\u20e3"),
        ("⚠\ufe0f\ufe0f\ufe0f", "⚠\ufe0f⟨FE0F⟩⟨FE0F⟩"),
        ("👩\u200d💻 👩🏽\u200d💻 ❤\ufe0f\u200d🔥", "👩💻 👩🏽💻 ❤\ufe0f🔥"),
        ("a\u200db", "a⟨200D⟩b"),
    ],
)
def test_what_is_not_seen_is_shown_as_its_code(text: str, seen: str) -> None:
    assert visible(text) == seen
    assert visible(seen) == seen


def test_no_character_that_formats_text_passes() -> None:
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        if unicodedata.category(character) in ("Cf", "Cc", "Cs", "Zl", "Zp") and character not in "\n\t":
            assert not is_visible(character)
            assert visible(f"a{character}b") == f"a⟨{code:04X}⟩b"
