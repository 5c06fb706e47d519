"""The order of Debian versions, as Debian policy defines it. Pure."""

from __future__ import annotations

import re
from typing import Final

_PARTS: Final = re.compile(r"(\D*)(\d*)")
_TESTS: Final = {
    "<<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
    "=": lambda order: order == 0,
    ">=": lambda order: order >= 0,
    ">>": lambda order: order > 0,
    # As they were written before 1996, and still are here and there.
    "<": lambda order: order <= 0,
    ">": lambda order: order >= 0,
}


def compare(one: str, other: str) -> int:
    """Negative where `one` is the earlier, 0 where they are equal, positive where it is the later."""
    for mine, theirs in zip(_split(one), _split(other), strict=True):
        if order := _compare_part(mine, theirs):
            return order
    return 0


def satisfies(version: str, operator: str, wanted: str) -> bool:
    test = _TESTS.get(operator)
    return test is not None and test(compare(version, wanted))


def _split(version: str) -> tuple[str, str, str]:
    """Epoch, upstream version and revision."""
    epoch, colon, rest = version.strip().partition(":")
    if not colon:
        epoch, rest = "0", version.strip()
    upstream, dash, revision = rest.rpartition("-")
    return (epoch, upstream, revision) if dash else (epoch, rest, "")


def _compare_part(one: str, other: str) -> int:
    mine, theirs = _PARTS.findall(one), _PARTS.findall(other)
    for number in range(max(len(mine), len(theirs))):
        text, digits = mine[number] if number < len(mine) else ("", "")
        their_text, their_digits = theirs[number] if number < len(theirs) else ("", "")
        weights, their_weights = _weights(text), _weights(their_text)
        if weights != their_weights:
            return -1 if weights < their_weights else 1
        if order := int(digits or 0) - int(their_digits or 0):
            return order
    return 0


def _weights(text: str) -> list[int]:
    """`~` comes before the end, the end before letters, letters before everything else."""
    return [-1 if each == "~" else ord(each) + (0 if each.isalpha() else 1000) for each in text] + [0]
