"""What an interpreter is asked for, looked at before anything is made of it. Raises `InvalidInterpreter`."""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Mapping
from typing import Any, Final, Literal

from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.guest.kernel import value_codec

Restore = Literal["fork"]
"""How a context that was killed comes back: from a live fork that was made before the execution."""

SMALLEST_MEMORY: Final = 16 << 20
"""Bytes below which a Python can barely start."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,120}\Z")
_EXECUTION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


def check_id(id: str) -> str:
    """The id of an interpreter: it names a box, a thread, and a path of the API."""
    if not isinstance(id, str) or not _ID.match(id):
        raise InvalidInterpreter(
            f"an interpreter cannot have the id {_shown(id)}", hint="use 1 to 120 letters, digits, - and _"
        )
    return id


def check_execution_id(id: str) -> str:
    """The id of an execution: it names a folder in the box."""
    if not isinstance(id, str) or not _EXECUTION_ID.match(id):
        raise InvalidInterpreter(
            f"an execution cannot have the id {_shown(id)}",
            hint="use 1 to 128 letters, digits, ., - and _, with a letter or a digit first",
        )
    return id


def check_timeout(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:  # which not-a-number is not, either
        raise InvalidInterpreter(
            f"an execution cannot have {seconds} seconds", hint="give a number above 0, or None for no limit"
        )
    return seconds


def check_memory(bytes: int | None) -> int | None:
    if bytes is not None and not bytes >= SMALLEST_MEMORY:
        raise InvalidInterpreter(
            f"a Python cannot live in {bytes} bytes of memory",
            hint=f"give at least {SMALLEST_MEMORY} ({SMALLEST_MEMORY >> 20} MB), or None for no limit",
        )
    return bytes


def check_count(what: str, number: int | None, least: int = 0) -> int | None:
    if number is not None and not number >= least:
        raise InvalidInterpreter(f"{what} cannot be {number}", hint=f"give {least} or more")
    return number


def check_restore(how: str | None) -> Restore | None:
    if how not in (None, "fork"):
        raise InvalidInterpreter(f"nothing is restored by {how!r}", hint='give restore="fork", or leave it out')
    return "fork" if how == "fork" else None


def ship_variables(variables: Mapping[str, Any] | None, taken: Collection[str]) -> list[bytes]:
    """Variables as they are sent, in pieces. `taken` are names that code needs as they are. Models of pydantic go as
    the documents that they are."""
    if not variables:
        return []
    for name in variables:
        if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
            raise InvalidInterpreter(f"a variable cannot be called {_shown(name)}", hint="use a name of Python")
        if name == "__builtins__" or name in taken:
            raise InvalidInterpreter(
                f"a variable cannot be called {name}: code needs what has that name", hint="use another name"
            )
    try:
        return value_codec.dump_parts(dict(variables))
    except value_codec.Unshippable:
        for name, value in variables.items():
            _check_shippable(name, value)
        raise


def _check_shippable(name: str, value: Any) -> None:
    try:
        value_codec.dump_parts({name: value})
    except value_codec.Unshippable as error:
        raise InvalidInterpreter(
            f"variable {name} cannot be sent to a box: {error}",
            hint="send plain values, arrays, tables or texts, or write a file to the box",
        ) from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
