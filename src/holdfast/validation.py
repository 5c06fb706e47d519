"""What pydantic says of a value that it refused, in words for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_OURS: Final = {"value_error": "Value error, ", "assertion_error": "Assertion failed, "}
"""Kinds of errors whose words are our own, and what pydantic puts before them."""


def describe_problem(problem: Mapping[str, Any]) -> str:
    """`problem` is one of `ValidationError.errors()`."""
    return str(problem["msg"]).removeprefix(_OURS.get(problem["type"], ""))
