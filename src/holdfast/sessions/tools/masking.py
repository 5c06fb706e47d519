"""Masks secrets in the output of a command: as they are, escaped, in base64 and in hexadecimal digits. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from typing import Final

from holdfast.redaction import LONGEST_SPELLING, Scrubber

_SHORTEST: Final = 8
"""Characters of an encoded secret that are looked for. Fewer would match by chance."""


def masked_end(data: bytes, values: Iterable[str], most: int) -> bytes:
    """Returns the last bytes of the data with every secret replaced by stars.

    Only as much is searched as a secret can take that begins before them: a box can print much that takes long.
    """
    known = [each for each in values if each]
    room = max((len(each.encode()) * LONGEST_SPELLING for each in known), default=0)
    return mask(data[-(most + room) :], known)[-most:]


def mask(data: bytes, values: Iterable[str]) -> bytes:
    """Returns the data with every secret replaced by stars."""
    known = sorted({each for each in values if each}, key=len, reverse=True)
    data = Scrubber(*known).whole(data)
    for value in known:
        raw = value.encode()
        data = data.replace(raw, b"*" * len(raw))  # also the short ones, which the scrubber leaves
        for spelling in _encodings(raw):
            pattern = re.compile(re.escape(spelling), re.IGNORECASE if spelling.isalnum() and _is_hex(spelling) else 0)
            data = pattern.sub(lambda found: b"*" * len(found[0]), data)
    return data


def _encodings(raw: bytes) -> list[bytes]:
    """Returns how a secret looks in base64, at each of the three places where it can begin, and in hexadecimal."""
    found = {raw.hex().encode()}
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + raw)
        first = -(-before * 4 // 3)  # digits that also depend on what comes before
        last = (before + len(raw)) * 8 // 6  # digits that depend on nothing that follows
        core = encoded[first:last]
        found |= {core, core.replace(b"+", b"-").replace(b"/", b"_")}
    return [each for each in found if len(each) >= _SHORTEST]


def _is_hex(text: bytes) -> bool:
    return all(each in b"0123456789abcdef" for each in text)
