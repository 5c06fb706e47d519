"""Ends the connections of another process, as a network that is cut does."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

_PIDFD_GETFD: Final = 438


def shut_connections(pid: int, wanted: Callable[[int], bool]) -> None:
    """Shut the TCP connections of a process to ports that are wanted. Both sides see them end. Skips the test where we
    may not.
    """
    with suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
        process = os.pidfd_open(pid)
        try:
            for each in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(FileNotFoundError):
                    if str(each.readlink()).startswith("socket:"):
                        _shut(process, int(each.name), wanted)
        except PermissionError as error:
            pytest.skip(f"the connections of a runner can be cut by root only: {error}")
        finally:
            os.close(process)


def _shut(process: int, number: int, wanted: Callable[[int], bool]) -> None:
    found = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, number, 0)
    if found < 0:
        error = ctypes.get_errno()
        if error == errno.EPERM:
            raise PermissionError(error, os.strerror(error))
        return  # it was closed meanwhile
    with socket.socket(fileno=found) as connection, suppress(OSError):  # one that only listens has no peer
        if connection.family in (socket.AF_INET, socket.AF_INET6) and wanted(connection.getpeername()[1]):
            connection.shutdown(socket.SHUT_RDWR)
