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
    """No server runs there, or it, or the box, does not answer."""
    CONFLICT = 6
    """It exists already, is closed, stopped or in use."""
    DISK_FULL = 7
    """The server's disk is full: nothing was written."""
    TIMED_OUT = 124
    """`box exec --timeout`: the command was killed."""
    NOT_RUN = 125
    """`box exec` and `box shell`: we failed, not the command; it did not run, or its end was not seen."""
    CANNOT_EXECUTE = 126
    """`box exec` and `box shell`: there is such a file, and it cannot be run."""
    NO_SUCH_COMMAND = 127
    """`box exec` and `box shell`: the box has no such command."""
    INTERRUPTED = 130
    """Ctrl-C."""
