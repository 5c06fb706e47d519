"""Reads how a user names an environment of the server: `NAME` or `NAME@VERSION`. Pure."""

from __future__ import annotations

import re
from typing import Final

from holdfast.api.environments import ENVIRONMENT_NAME
from holdfast.cli.errors import usage_error

_NAME: Final = re.compile(ENVIRONMENT_NAME)
_REFERENCE: Final = re.compile(f"({ENVIRONMENT_NAME})(?:@([1-9][0-9]{{0,8}}))?")


def parse_reference(text: str) -> tuple[str, int | None]:
    """Returns a name and a version, which is None for the latest one."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        raise usage_error(f"{text!r} is not an environment: NAME or NAME@VERSION", "for example web, or web@3")
    return found[1], None if found[2] is None else int(found[2])


def parse_name(text: str) -> str:
    if _NAME.fullmatch(text) is None:
        raise usage_error(
            f"{text!r} is not a name of an environment: up to 63 letters, digits, dots, dashes and underscores",
            "for example web",
        )
    return text
