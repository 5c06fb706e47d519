"""Which ids a box can have."""

from __future__ import annotations

import re
from typing import Final

from holdfast.api.errors.boxes import BoxNotFound, InvalidSpec

_ID: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def is_box_id(id: str) -> bool:
    return _ID.fullmatch(id) is not None


def check_new_id(id: str) -> None:
    """Raises `InvalidSpec` if a new box cannot have this id."""
    if not is_box_id(id):
        raise InvalidSpec(f"{id!r} cannot be the id of a box: lower case letters, digits and -, at most 63")


def check_known_id(id: str, provider: str) -> None:
    """Raises `BoxNotFound` if no box can have this id, so that it never becomes part of a path."""
    if not is_box_id(id):
        raise BoxNotFound(f"there is no {provider} box {id}")
