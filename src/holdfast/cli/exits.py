"""Exit codes, by which scripts decide without reading messages. Documented in docs/cli.md."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    OK = 0
    FAILURE = 1
    """Any failure that has no code of its own."""
    USAGE = 2
    """The command line, or a value in it, is invalid."""
    NOT_FOUND = 3
    NOT_AUTHORISED = 4
    """No API key or token, or one that does not allow this."""
    UNREACHABLE = 5
    """No server is running, or the server or the box does not answer."""
    CONFLICT = 6
    """It already exists, or is closed, stopped or in use."""
    DISK_FULL = 7
    """The server's disk is full: nothing was written."""
    TIMED_OUT = 124
    """`box exec --timeout`: the command was killed."""
    NOT_RUN = 125
    """`box exec` and `box shell`: Holdfast failed. The command did not run, or its end is unknown."""
    CANNOT_EXECUTE = 126
    """`box exec` and `box shell`: the file exists, but cannot be executed."""
    NO_SUCH_COMMAND = 127
    """`box exec` and `box shell`: the box has no such command."""
    INTERRUPTED = 130
    """Ctrl-C."""
