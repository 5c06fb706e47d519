"""The `tty` subprotocol of ttyd: the first byte of a message tells what it is. Pure.

A client's first message is JSON with the size of its window. Ours may also have `offset`: where the output continues
that the client has already. The preferences that we send tell the offset of the output that follows, so that a client
can count along, and where the old output ends: a terminal must not answer questions of programs in it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from holdfast.api.errors import InvalidRequest

SUBPROTOCOL: Final = "tty"
OUTPUT: Final = b"0"
TITLE: Final = b"1"
PREFERENCES: Final = b"2"
_MOST_HELLO: Final = 16 * 1024
_LARGEST: Final = 1000
_FARTHEST: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a client."""

    columns: int
    rows: int
    offset: int | None = None


@dataclass(frozen=True, slots=True)
class Input:
    data: bytes


@dataclass(frozen=True, slots=True)
class Resize:
    columns: int
    rows: int


@dataclass(frozen=True, slots=True)
class Flow:
    """Whether output shall come."""

    paused: bool


Message = Input | Resize | Flow


def parse_hello(data: bytes) -> Hello:
    """Raises `InvalidRequest`."""
    if len(data) > _MOST_HELLO or not data.startswith(b"{"):
        raise InvalidRequest('the first message must be JSON, such as {"columns": 80, "rows": 24}')
    said = _object(data)
    offset = said.get("offset")
    if offset is not None and (type(offset) is not int or not 0 <= offset <= _FARTHEST):
        raise InvalidRequest(f"offset {str(offset)[:40]} is not a position in the output of a terminal")
    return Hello(*_size(said), offset)


def parse(data: bytes) -> Message | None:
    """Returns None for messages that we do not know, which other versions of ttyd may send. Raises `InvalidRequest`."""
    match data[:1]:
        case b"0":
            return Input(data[1:])
        case b"1":
            return Resize(*_size(_object(data[1 : _MOST_HELLO + 1])))
        case b"2":
            return Flow(paused=True)
        case b"3":
            return Flow(paused=False)
    return None


def preferences(offset: int, end: int) -> bytes:
    """Tells a client the offset of the output that follows, and where the output ends that was there before it came."""
    return PREFERENCES + json.dumps({"offset": offset, "end": end}).encode()


def title(text: str) -> bytes:
    return TITLE + text.encode()


def _object(data: bytes) -> dict[str, Any]:
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise InvalidRequest("a message of a terminal has invalid JSON")
    return said


def _size(said: dict[str, Any]) -> tuple[int, int]:
    columns, rows = said.get("columns", 80), said.get("rows", 24)
    for number in (columns, rows):
        if type(number) is not int or not 1 <= number <= _LARGEST:
            raise InvalidRequest(f"a terminal has 1 to {_LARGEST} columns and rows, not {str(number)[:40]}")
    return columns, rows
