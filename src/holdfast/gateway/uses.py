"""What each role may do at the gateway. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from holdfast.api.session.gateway import Role


class Use(StrEnum):
    """What a request does."""

    PAGE = "page"
    """Reads a page of the gateway itself."""
    WATCH = "watch"
    """Watches a terminal."""
    TYPE = "type"
    """Types into a terminal."""
    PROGRAM = "program"
    """Uses the editor or the desktop, which do whatever their user wants."""
    READ_TUNNEL = "read tunnel"
    """Gets a page of a tunnelled port."""
    USE_TUNNEL = "use tunnel"
    """Sends something to a tunnelled port, or opens a WebSocket to it."""


_OF_VIEWERS: Final = frozenset((Use.PAGE, Use.WATCH, Use.READ_TUNNEL))


def may(role: Role, use: Use) -> bool:
    """A viewer cannot use the editor, the desktop or a WebSocket of a tunnel: we cannot tell typing from watching
    there."""
    return role is not Role.VIEWER or use in _OF_VIEWERS
