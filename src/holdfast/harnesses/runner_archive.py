"""Packs the runner with a harness's reader into an archive, and starts it in a box."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.boxes import guest_archive
from holdfast.boxes.guest_archive import stdin_of
from holdfast.guest.runner.harness_modules import driver_module, host_module, reader_module

__all__ = ["boot_argv", "boot_session_argv", "pack", "pack_session", "stdin_of"]

_RUNNER: Final = "holdfast.guest.runner.main"
_SESSION_RUNNER: Final = "holdfast.guest.session_runner.main"
_CLOSE: Final = (
    "import _ctypes; _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 0), 'prctl'), (4, 0, 0, 0, 0))"
)
"""PR_SET_DUMPABLE: processes of the same user cannot read its memory or open its descriptors, which carry a token."""
_EARLY: Final = (
    "_blake2", "_ctypes", "_socket", "binascii", "collections", "errno", "importlib", "json", "signal", "time"
)  # fmt: skip


def boot_argv(python: Sequence[str]) -> list[str]:
    """Returns the command that reads the runner from stdin and starts it. `python` starts Python in the box."""
    return guest_archive.boot_argv(python, _RUNNER, _EARLY, _CLOSE)


@functools.cache
def pack(harnesses: tuple[str, ...], more: tuple[tuple[str, Path], ...] = ()) -> bytes:
    """Returns the archive of a runner for these harnesses.

    `more` adds modules under the given names, for example a third-party reader as `holdfast.harnesses.mine.reader`.
    """
    wanted = [_RUNNER]
    for name in harnesses:
        wanted.append(reader_module(name))
        if guest_archive.find_source(driver_module(name)) is not None:
            wanted.append(driver_module(name))
    return guest_archive.pack(wanted, more)


def boot_session_argv(python: Sequence[str]) -> list[str]:
    """Returns the command that reads the runner of a session from stdin and starts it."""
    return guest_archive.boot_argv(python, _SESSION_RUNNER, _EARLY, _CLOSE)


@functools.cache
def pack_session(harness: str) -> bytes:
    """Returns the archive of a session's runner, for an agent with a server."""
    return guest_archive.pack((_SESSION_RUNNER, host_module(harness)))
