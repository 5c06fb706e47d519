"""Readable messages for values that pydantic refused. Does not import pydantic."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_OURS: Final = {"value_error": "Value error, ", "assertion_error": "Assertion failed, "}
"""Kinds of errors with our own messages, and the prefix that pydantic adds."""
_LONGEST: Final = 80
_CLASS: Final = re.compile(r"\^(\[[^\]]+\])?(\[[^\]]+\])(?:\{(\d),(\d{1,5})\}|[+*])\$")
"""The patterns of names: perhaps one class for the first character, one for the rest, and how many there may be."""
_CLASSES: Final = {
    "[A-Za-z0-9_-]": "letters, digits, - and _",
    "[A-Za-z0-9._-]": "letters, digits, dots, - and _",
    "[a-z0-9._-]": "small letters, digits, dots, - and _",
    "[A-Za-z0-9_]": "letters, digits and _",
    "[!-~]": "printable ASCII characters without spaces",
}
_FIRSTS: Final = {
    "[A-Za-z0-9]": "begins with a letter or digit",
    "[a-z0-9]": "begins with a small letter or digit",
    "[A-Za-z_]": "begins with a letter or _",
}


def describe_problem(problem: Mapping[str, Any]) -> str:
    """`problem` is one of `ValidationError.errors()`."""
    context = problem.get("ctx") or {}
    match problem["type"]:
        case "string_pattern_mismatch":
            return f"{_shown(problem.get('input'))} does not fit: {_describe_pattern(str(context.get('pattern')))}"
        case "string_too_short" if context.get("min_length") == 1:
            return "must not be empty"
        case "string_too_long":
            return f"has at most {context.get('max_length')} characters"
        case "missing":
            return "is missing"
        case "unexpected_keyword_argument":
            return "Extra inputs are not permitted"
        case "dataclass_type":
            return "Input should be a valid dictionary or object to extract fields from"
        case kind:
            return str(problem["msg"]).removeprefix(_OURS.get(kind, ""))


def _describe_pattern(pattern: str) -> str:
    """Describe the characters that a pattern allows."""
    found = _CLASS.fullmatch(pattern)
    first, rest, _, most = found.groups() if found is not None else (None, None, None, None)
    if rest not in _CLASSES or (first is not None and first not in _FIRSTS):
        return f"it must match {pattern}"
    begins = "" if first is None else f", and {_FIRSTS[first]}"
    room = "" if most is None else f", at most {int(most) + (first is not None)}"
    return f"it takes {_CLASSES[rest]}{room}{begins}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
