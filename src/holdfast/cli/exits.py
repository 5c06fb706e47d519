"""Exit codes: what a script can tell without reading a message. Documented in docs/cli.md."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    FAILURE = 1
    """Something else than below went wrong."""
    USAGE = 2
    """The command line, or a value given with it, makes no sense."""
    NOT_FOUND = 3
    NOT_AUTHORISED = 4
    """No API key or token, or one that does not allow this."""
    UNREACHABLE = 5
    """No server runs there, or it does not answer."""
    CONFLICT = 6
    """It exists already, or is closed."""
    DISK_FULL = 7
    """The server's disk is full: nothing was written."""
    INTERRUPTED = 130
    """Ctrl-C."""
