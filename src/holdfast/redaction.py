"""Removes a secret from what others answer: some quote a wrong key, and neither a box nor a log may show it.

A quoted key is often escaped: as a URL, JSON or HTML writes it, with upper or lower case digits, and only those
characters that the writer had to escape. So every character of a key that is not a letter or a digit is recognised in
all its spellings, in any mixture.
"""

from __future__ import annotations

import html.entities
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

_SHORTEST: Final = 16
"""Shorter ones are not secret, and may occur as words in an answer."""
_PARTS: Final = re.compile(r"[A-Za-z0-9]+|\\+|[^A-Za-z0-9\\]", re.DOTALL)
"""The parts of a key. Nobody escapes letters and digits. Backslashes in a row are doubled together."""
_NAMED: Final = {"\n": "n", "\r": "r", "\t": "t", "\b": "b", "\f": "f"}
LONGEST_SPELLING: Final = 64
"""Bytes of one character."""
_REMEMBERED: Final = 64
"""Keys, and characters, whose spellings are not worked out again for each answer."""
_NOTHING: Final = re.compile(rb"(?!)")


class Scrubber:
    """For one answer, piece by piece. Holds back only bytes at the end of a piece that could begin a key."""

    def __init__(self, *keys: str | None) -> None:
        known = {key for key in keys if key is not None and len(key) >= _SHORTEST}
        # A key can be part of another.
        self._keys = [_spelled(key) for key in sorted(known, key=lambda key: len(key.encode()), reverse=True)]
        self._held = b""

    def text(self, text: str) -> str:
        """Redact a complete text, such as a header."""
        return self._clean(text.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")

    def whole(self, data: bytes) -> bytes:
        """Redact complete data."""
        return self._clean(data)

    def feed(self, piece: bytes) -> bytes:
        if not self._keys:
            return piece
        data = self._clean(self._held + piece)
        held = max(key.begun(data) for key in self._keys)
        self._held = data[len(data) - held :]
        return data[: len(data) - held]

    def rest(self) -> bytes:
        """Returns what was held back when the answer ended."""
        held, self._held = self._held, b""
        return held

    def _clean(self, data: bytes) -> bytes:
        for key in self._keys:
            data = key.clean(data)
        return data


@dataclass(frozen=True, slots=True)
class _Part:
    """Letters and digits, or one character in all its spellings."""

    plain: bytes | None
    """The letters and digits. None for another character."""
    source: bytes
    """A pattern for it."""
    whole: re.Pattern[bytes]
    begun: re.Pattern[bytes]
    """The beginning of a spelling."""


@dataclass(frozen=True, slots=True)
class _Spelled:
    """A key, and how else it may be written."""

    plain: bytes
    parts: tuple[_Part, ...]
    pattern: re.Pattern[bytes] | None
    """All parts, or None if the key has only letters and digits."""
    first: re.Pattern[bytes]
    """The bytes that a key in any spelling begins with."""
    room: int
    """Bytes of its longest spelling."""

    def clean(self, data: bytes) -> bytes:
        data = data.replace(self.plain, b"*" * len(self.plain))
        return data if self.pattern is None else self.pattern.sub(_stars, data)

    def begun(self, data: bytes) -> int:
        """Returns how many of the last bytes could begin the key."""
        begun = _begun(self.plain, data)
        if self.pattern is None:
            return begun
        for found in self.first.finditer(data, max(0, len(data) - self.room)):
            if len(data) - found.start() <= begun:
                break
            if self._begins(data, found.start()):
                return len(data) - found.start()
        return begun

    def _begins(self, data: bytes, at: int) -> bool:
        """Returns whether all that follows in the data could be the beginning of the key."""
        for part in self.parts:
            if at == len(data):
                return True
            if part.plain is not None:
                if not data.startswith(part.plain, at):
                    return part.plain.startswith(data[at:])
                at += len(part.plain)
                continue
            if part.begun.fullmatch(data, at):
                return True
            found = part.whole.match(data, at)
            if found is None:
                return False
            at = found.end()
        return False


@lru_cache(_REMEMBERED)
def _spelled(key: str) -> _Spelled:
    texts: list[str] = _PARTS.findall(key)
    parts = tuple(_part(text, before.startswith("\\")) for before, text in zip(["", *texts], texts, strict=False))
    plain = key.encode()
    first = re.escape(plain[:1]) if parts[0].plain is not None else b"[%b%b]" % (re.escape(plain[:1]), rb"\\%&+")
    return _Spelled(
        plain,
        parts,
        None if all(part.plain is not None for part in parts) else re.compile(b"".join(part.source for part in parts)),
        re.compile(first),
        sum(
            len(text) * (LONGEST_SPELLING if part.plain is None else 1) for text, part in zip(texts, parts, strict=True)
        ),
    )


@lru_cache(_REMEMBERED)
def _part(text: str, after_backslash: bool) -> _Part:
    if text.isascii() and text.isalnum():
        return _Part(text.encode(), text.encode(), _NOTHING, _NOTHING)
    spellings = _spellings(text, after_backslash)
    # A key may contain what looks like an escape: `%25`. Nothing else can be read in two ways, so no search takes long.
    source = (b"(?:" if text in "%&" else b"(?>") + b"|".join(map(b"".join, spellings)) + b")"
    return _Part(None, source, re.compile(source), re.compile(b"|".join(map(_beginning, spellings))))


def _begun(key: bytes, data: bytes) -> int:
    """Returns how many of the last bytes could begin the key, as it is."""
    at = data.find(key[:1], max(0, len(data) - len(key) + 1))
    while at >= 0 and not key.startswith(data[at:]):
        at = data.find(key[:1], at + 1)
    return 0 if at < 0 else len(data) - at


def _stars(found: re.Match[bytes]) -> bytes:
    return b"*" * len(found[0])


_Spelling = list[bytes]
"""The patterns of its characters, in order."""


def _spellings(text: str, after_backslash: bool) -> list[_Spelling]:
    """Returns the spellings of one character, or of some backslashes in a row."""
    character, count = text[0], len(text)
    code = ord(character)
    digits = _digits(f"{code:x}")
    # JSON in JSON has up to seven backslashes. Those of an escape after a backslash of the key are taken with that.
    backslashes = rb"\\{0,7}" if after_backslash else rb"\\{1,7}"
    found: list[_Spelling] = [
        [each for byte in character.encode() for each in (b"%", *[b"2", b"5"] * again, *_digits(f"{byte:02x}"))]
        for again in (2, 1, 0)  # the longest first
    ]
    found.append([each for unit in _utf16(character) for each in (backslashes, b"u", *_digits(f"{unit:04x}"))])
    found.append([backslashes, b"u", rb"\{", b"0{0,4}", *digits, rb"\}"])
    if code < 0x100:
        found.append([backslashes, b"x", *_digits(f"{code:02x}")])
    if character in _NAMED:
        found.append([backslashes, _NAMED[character].encode()])
    names = [_bytes(name) for name in _html_names().get(character, ())]
    numbers = [[b"#", b"0{0,5}", *_bytes(str(code).encode())], [b"#", b"[xX]", b"0{0,5}", *digits]]
    for again in (2, 1, 0):
        found += [[b"&", *_bytes(b"amp;") * again, *name, b";?"] for name in (*numbers, *names)]
    if character == " ":
        found.append([rb"\+"])
    if character == "\\":
        return [each * count for each in found] + [[rb"\\"] * count + [rb"\\{0,%d}" % (7 * count)]]
    return [*found, [rb"\\{0,7}", *(re.escape(each) for each in _bytes(character.encode()))]]


def _beginning(spelling: _Spelling) -> bytes:
    """Returns a pattern for all that a spelling can begin with."""
    pattern = b""
    for each in reversed(spelling[:-1]):
        pattern = each + (b"(?:" + pattern + b")?" if pattern else b"")
    return pattern or rb"(?!)"


def _bytes(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


def _digits(number: str) -> list[bytes]:
    """Returns the patterns for the digits of a hexadecimal number, in upper or lower case."""
    return [(each if each.isdigit() else f"[{each}{each.upper()}]").encode() for each in number]


def _utf16(character: str) -> list[int]:
    data = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


@cache
def _html_names() -> dict[str, list[bytes]]:
    """Returns the names of characters in HTML."""
    found: dict[str, list[bytes]] = {}
    for name, character in html.entities.html5.items():
        if name.endswith(";"):
            found.setdefault(character, []).append(name.removesuffix(";").encode())
    return found
