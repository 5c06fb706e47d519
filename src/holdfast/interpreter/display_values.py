"""Values as they are written on a thread: plain JSON, and never more than there is room for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

ROOM: Final = 8_000
"""Characters, about."""
_DEPTH: Final = 8


def show(value: Any, room: int = ROOM) -> Any:
    """As much of a value as fits, with what was left out said in its place. Takes no longer than that."""
    return _Room(room).show(value, 0)


class _Room:
    def __init__(self, left: int) -> None:
        self._left = left

    def show(self, value: Any, depth: int) -> Any:
        self._left -= 8
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int):
            return int(value) if abs(value) < 2**53 else self._text(_digits(value))
        if isinstance(value, float):
            return float(value) if value - value == 0 else repr(float(value))
        if isinstance(value, str):
            return self._text(value)
        if depth >= _DEPTH:
            return f"<{type(value).__name__}>"
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self._items(value, depth)
        if isinstance(value, bytes | bytearray):
            return f"<{len(value)} bytes>"
        return f"<{type(value).__name__}>"

    def _text(self, value: str) -> str:
        room = max(0, self._left)
        self._left -= len(value)
        clean = value[:room].encode("utf-8", "replace").decode()  # half of a pair has no place in JSON
        return clean if len(value) <= room else f"{clean}… {len(value) - room} characters more"

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for number, (key, each) in enumerate(value.items()):
            if self._left <= 0:
                made["…"] = f"{len(value) - number} more"
                break
            name = self._text(
                key if isinstance(key, str) else f"<{type(key).__name__}>"
            )  # before its value has the room
            made[name] = self.show(each, depth + 1)
        return made

    def _items(self, value: Any, depth: int) -> list[Any]:
        made: list[Any] = []
        for number, each in enumerate(value):
            if self._left <= 0:
                made.append(f"… {len(value) - number} more")
                break
            made.append(self.show(each, depth + 1))
        return made


def _digits(value: int) -> str:
    return str(value) if value.bit_length() < 1000 else f"<an integer of {value.bit_length()} bits>"
