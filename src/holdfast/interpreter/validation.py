"""Checks of the arguments of an interpreter. They raise `InvalidInterpreter`."""

from __future__ import annotations

import re
from typing import Final, Literal

from holdfast.api.errors.interpreters import InvalidInterpreter

Restore = Literal["fork"]
"""How a killed context is restored: from a live fork that was made before the execution."""

SMALLEST_MEMORY: Final = 16 << 20
"""Python hardly starts with fewer bytes."""
_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,120}\Z")
_EXECUTION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")


def check_id(id: str) -> str:
    """The id of an interpreter names a box, a thread, and a path of the API."""
    if not isinstance(id, str) or not _ID.match(id):
        raise InvalidInterpreter(
            f"{shorten(id)} is not a valid interpreter id", hint="use 1 to 120 letters, digits, - and _"
        )
    return id


def check_execution_id(id: str) -> str:
    """The id of an execution names a folder in the box."""
    if not isinstance(id, str) or not _EXECUTION_ID.match(id):
        raise InvalidInterpreter(
            f"{shorten(id)} is not a valid execution id",
            hint="use 1 to 128 letters, digits, ., - and _, with a letter or a digit first",
        )
    return id


def check_timeout(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:  # this refuses NaN, too
        raise InvalidInterpreter(
            f"the timeout cannot be {seconds} seconds", hint="give a number above 0, or None for no limit"
        )
    return seconds


def check_memory(bytes: int | None) -> int | None:
    if bytes is not None and not bytes >= SMALLEST_MEMORY:
        raise InvalidInterpreter(
            f"Python cannot run in {bytes} bytes of memory",
            hint=f"give at least {SMALLEST_MEMORY} ({SMALLEST_MEMORY >> 20} MB), or None for no limit",
        )
    return bytes


def check_count(what: str, number: int | None, least: int = 0) -> int | None:
    if number is not None and not number >= least:
        raise InvalidInterpreter(f"{what} cannot be {number}", hint=f"give {least} or more")
    return number


def check_restore(how: str | None) -> Restore | None:
    if how not in (None, "fork"):
        raise InvalidInterpreter(f"restore cannot be {how!r}", hint='give restore="fork", or leave it out')
    return "fork" if how == "fork" else None


def shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
