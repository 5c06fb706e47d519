"""Packs a text into labels of a cloud, which are short, and reads it back."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterable
from typing import Final

_LONGEST_TEXT: Final = 1 << 18


def pack(text: str, piece: int) -> list[str]:
    """Returns pieces of at most `piece` characters, all of them letters, digits, `-`, `_` and `=`."""
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()
    return [packed[start : start + piece] for start in range(0, len(packed), piece)]


def unpack(pieces: Iterable[str]) -> str | None:
    """Returns the text, or None if the pieces hold none."""
    try:
        packed = base64.urlsafe_b64decode("".join(pieces))
        return zlib.decompressobj().decompress(packed, _LONGEST_TEXT).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError, zlib.error):
        return None
