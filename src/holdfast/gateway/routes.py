"""The paths of a session's own origin. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, NamedTuple

_TUNNEL: Final = re.compile(rb"/t/([A-Za-z0-9_-]{1,32})(/.*)?", re.DOTALL)
_PROGRAM: Final = re.compile(rb"/(vscode|vnc)(/.*)?", re.DOTALL)
_TERMINAL: Final = re.compile(rb"/tty(/.*)?", re.DOTALL)
TERMINAL_SOCKET: Final = b"/tty/ws"


class Kind(StrEnum):
    HEALTH = "health"
    INDEX = "index"
    PROGRAM = "program"
    """The editor or the desktop."""
    TERMINAL = "terminal"
    TUNNEL = "tunnel"
    UNKNOWN = "unknown"


class Route(NamedTuple):
    kind: Kind
    name: str = ""
    """Of the program or the tunnel."""
    path: bytes = b""
    """What follows; empty if not even a slash does."""


def parse_path(path: bytes) -> Route:
    """`path` is as in the request, still quoted. A quoted spelling of a route is not that route."""
    if path == b"/health":
        return Route(Kind.HEALTH)
    if path in (b"", b"/"):
        return Route(Kind.INDEX)
    if (match := _PROGRAM.fullmatch(path)) is not None:
        return Route(Kind.PROGRAM, match[1].decode(), match[2] or b"")
    if (match := _TERMINAL.fullmatch(path)) is not None:
        return Route(Kind.TERMINAL, path=match[1] or b"")
    if (match := _TUNNEL.fullmatch(path)) is not None:
        return Route(Kind.TUNNEL, match[1].decode(), match[2] or b"")
    return Route(Kind.UNKNOWN)
