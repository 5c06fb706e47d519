"""Opens a folder below another one that a box may be changing. Never follows a link."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPENAT2: Final = 437
"""The same number on every architecture. Needs Linux 5.6; a container may refuse it."""
_BENEATH_WITHOUT_LINKS: Final = 0x08 | 0x04 | 0x02
"""RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS, RESOLVE_NO_MAGICLINKS."""
_libc: Final = ctypes.CDLL(None, use_errno=True)


def open_beneath(root: int, path: str) -> int:
    """Open a folder by its path from an open one. O_NOFOLLOW alone applies only to the last step of a path."""
    how = struct.pack("QQQ", FOLDER, 0, _BENEATH_WITHOUT_LINKS)
    descriptor = int(_libc.syscall(_OPENAT2, root, os.fsencode(path), how, len(how)))
    if descriptor >= 0:
        return descriptor
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EPERM):
        return open_by_steps(root, path)
    raise OSError(number, os.strerror(number), path)


def open_by_steps(root: int, path: str) -> int:
    """The same for kernels without that call."""
    at = os.dup(root)
    for part in path.split("/"):
        if part == "..":
            os.close(at)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
        try:
            below = os.open(part or ".", FOLDER, dir_fd=at)
        finally:
            os.close(at)
        at = below
    return at
