"""Patterns of stream paths. `*` matches one segment, `**` any number of segments including none.

A literal asterisk is written `%2A`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from holdfast.threads.access.credentials import AUDIT
from holdfast.threads.subscriptions.errors import InvalidSubscription

MAX_PATTERN: Final = 1024
_ANY: Final = "**"
_ONE: Final = "*"
_ASTERISK: Final = re.compile("%2a", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Glob:
    """A parsed pattern. Matching takes at most (segments of the pattern) × (segments of the path) steps."""

    text: str
    segments: tuple[str | None, ...]
    """Literals; None for `*` and `**`."""
    wild: tuple[bool, ...]
    """Which segments are `**`."""
    prefix: str
    """The common prefix of all matching paths."""

    @classmethod
    def parse(cls, text: str) -> Glob:
        text = text.strip("/")
        if not text or len(text) > MAX_PATTERN or not text.isprintable():
            raise InvalidSubscription(f"a pattern must have 1 to {MAX_PATTERN} printable characters")
        parts = text.split("/")
        for part in parts:
            if part == "":
                raise InvalidSubscription(f"pattern {text!r} has an empty segment")
            if "*" in part and part not in (_ONE, _ANY):
                raise InvalidSubscription(
                    f"pattern {text!r}: the asterisk in {part!r} is only part of a segment",
                    hint="* matches one whole segment, ** any number of them; write a literal asterisk as %2A",
                )
        literals = []
        for part in parts:
            if part in (_ONE, _ANY):
                break
            literals.append(_ASTERISK.sub("*", part))
        return cls(
            text,
            tuple(None if part in (_ONE, _ANY) else _ASTERISK.sub("*", part) for part in parts),
            tuple(part == _ANY for part in parts),
            "/".join(literals),  # without a trailing slash, because `a/**` also matches `a`
        )

    def matches(self, path: str) -> bool:
        """Walk both once. On a mismatch, the last `**` takes one more segment; earlier ones never need to."""
        if not path.startswith(self.prefix) or path == AUDIT:  # which only owners read
            return False
        segments, wild = self.segments, self.wild
        parts = path.split("/")
        at = position = 0
        star = resume = -1
        while position < len(parts):
            if at < len(segments) and wild[at]:
                star, resume = at, position
                at += 1
            elif at < len(segments) and (segments[at] is None or segments[at] == parts[position]):
                at += 1
                position += 1
            elif star >= 0:
                resume += 1
                at, position = star + 1, resume
            else:
                return False
        return all(wild[at:])
