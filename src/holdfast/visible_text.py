"""Makes characters visible that hide, reorder or control text. Pure.

Agents, tools and files choose what people read. A character without a shape can hide a word from its reader, or make
one name look like another; one that changes the direction of text lets a line read differently than it is.
"""

from __future__ import annotations

import re
from typing import Final

_SHAPELESS: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
"""Characters that Python calls printable, and that are not seen."""
_JOINER: Final = "\u200d"
_STYLES: Final = "\ufe0e\ufe0f"
"""After a symbol they choose between text and emoji."""
_KEYCAPS: Final = "#*0123456789"


def visible(text: str) -> str:
    """Show every character that is not seen as its code: `⟨202E⟩`. Line breaks and tabs stay.

    Spaces of other widths become spaces. Emoji stay readable: what joins several into one is removed.
    """
    if is_visible(text):
        return text
    import unicodedata  # here, because most texts do not need it

    def category(at: int) -> str:
        return unicodedata.category(text[at]) if 0 <= at < len(text) else ""

    shown = []
    for at, each in enumerate(text):
        if each in "\n\t" or is_visible(each):
            shown.append(each)
        elif category(at) == "Zs":
            shown.append(" ")
        elif each in _STYLES and at and (category(at - 1) in ("So", "Sm", "Po", "Pd") or text[at - 1] in _KEYCAPS):
            shown.append(each)
        elif each == _JOINER and _is_emoji(category(at - 1), text[at - 1 : at]) and category(at + 1) in ("So", "Sm"):
            continue
        else:
            shown.append(code(each))
    return "".join(shown)


def is_visible(text: str) -> bool:
    """Returns whether a text has only characters that are seen as what they are."""
    return text.isprintable() and (text.isascii() or _SHAPELESS.search(text) is None)


def code(character: str) -> str:
    return f"⟨{ord(character):04X}⟩"


def _is_emoji(category: str, character: str) -> bool:
    return category in ("So", "Sk") or (bool(character) and character in _STYLES)
