"""Readable messages for values that pydantic refused. Does not import pydantic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final

_OURS: Final = {"value_error": "Value error, ", "assertion_error": "Assertion failed, "}
"""Kinds of errors with our own messages, and the prefix that pydantic adds."""
_UNKNOWN: Final = "is not known here"
_SAID: Final = {
    "missing": "is missing",
    "missing_argument": "is missing",
    "missing_keyword_only_argument": "is missing",
    "missing_positional_only_argument": "is missing",
    "extra_forbidden": _UNKNOWN,
    "unexpected_keyword_argument": _UNKNOWN,
    "unexpected_positional_argument": _UNKNOWN,
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dataclass_type": "must be an object",
    "dict_type": "must be an object",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "is too large",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "none_required": "must be null",
}
"""What to say by the kind of error. The others are reworded by `_WORDS`."""
_WORDS: Final = tuple(
    (re.compile(pattern), ours)
    for pattern, ours in (
        (r"^(?:\w+ )?(?:[Ii]nput|String|Data|Date|Keys|List|Dictionary|Tuple|Set|URL)(?: items)? should ", "must "),
        (r"^Input (is not|violated)", r"\1"),
        (r"\bshould\b", "must"),
        (r"greater than or equal to", "at least"),
        (r"less than or equal to", "at most"),
        (r"\ba valid (?=[aeiou])", "an "),
        (r"\ba valid ", "a "),
        (r" after validation", ""),
        (r", unable to .*|, got .*|, not more$", ""),
    )
)
_LONGEST: Final = 80
_LONGEST_PROBLEM: Final = 300
_MOST: Final = 5
_CLASS: Final = re.compile(r"\^(\[[^\]]+\])?(\[[^\]]+\])(?:\{(\d),(\d{1,5})\}|[+*])\$")
"""The patterns of names: perhaps one class for the first character, one for the rest, and how many there may be."""
_CLASSES: Final = {
    "[A-Za-z0-9_-]": "letters, digits, - and _",
    "[A-Za-z0-9._-]": "letters, digits, dots, - and _",
    "[a-z0-9._-]": "small letters, digits, dots, - and _",
    "[A-Za-z0-9_]": "letters, digits and _",
    "[a-z0-9]": "small letters and digits",
    "[!-~]": "printable ASCII characters without spaces",
}
_FIRSTS: Final = {
    "[A-Za-z0-9]": "begins with a letter or digit",
    "[a-z0-9]": "begins with a small letter or digit",
    "[A-Za-z_]": "begins with a letter or _",
    "[a-z]": "begins with a small letter",
}


def describe_problems(problems: Iterable[Mapping[str, Any]]) -> str:
    """Returns the first few problems, each with its field. What a caller sent is shortened: it may be a megabyte."""
    said = []
    for each in islice(problems, _MOST):
        field = ".".join(map(str, each["loc"]))
        said.append(f"{_cut(field, _LONGEST) or 'the body'}: {_cut(describe_problem(each), _LONGEST_PROBLEM)}")
    return "; ".join(said)


def describe_problem(problem: Mapping[str, Any]) -> str:
    """`problem` is one of `ValidationError.errors()`, with or without its context. The answer follows the field's name:
    `is missing`, `must be an integer`.
    """
    context, kind = problem.get("ctx") or {}, str(problem["type"])
    match kind:
        case "string_pattern_mismatch" if "pattern" in context:
            return f"{_shown(problem.get('input'))} does not fit: {_describe_pattern(str(context['pattern']))}"
        case "string_too_short" if context.get("min_length") == 1:
            return "must not be empty"
        case _ if kind in _SAID:
            return _SAID[kind]
        case _ if kind in _OURS:
            return str(problem["msg"]).removeprefix(_OURS[kind])
        case _:
            return _in_our_words(str(problem["msg"]))


def _in_our_words(message: str) -> str:
    """Returns a message of pydantic without the words that mean something only to users of pydantic."""
    for pattern, ours in _WORDS:
        message = pattern.sub(ours, message)
    return message[:1].lower() + message[1:]


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
    return _cut(repr(value), _LONGEST)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"
