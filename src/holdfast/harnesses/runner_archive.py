"""The runner as bytes: its code and a harness's reader, and what it takes to start that in a box."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from holdfast.boxes import guest_archive
from holdfast.boxes.guest_archive import stdin_of
from holdfast.guest.runner.harness_modules import driver_module, reader_module

__all__ = ["boot_argv", "pack", "stdin_of"]

_RUNNER: Final = "holdfast.guest.runner.main"
_CLOSE: Final = (
    "import _ctypes; _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen(None, 0), 'prctl'), (4, 0, 0, 0, 0))"
)
"""PR_SET_DUMPABLE: nobody of the same user looks into it, or opens its descriptors, which a token will come through."""
_EARLY: Final = (
    "_blake2", "_ctypes", "_socket", "binascii", "collections", "errno", "importlib", "json", "signal", "time"
)  # fmt: skip


def boot_argv(python: Sequence[str]) -> list[str]:
    """Starts the runner that comes over its standard input. `python` is what runs guest code in the box."""
    return guest_archive.boot_argv(python, _RUNNER, _EARLY, _CLOSE)


def pack(harnesses: Iterable[str], more: Iterable[tuple[str, Path]] = ()) -> bytes:
    """The archive of a runner that knows these harnesses. `more` are modules to be added, by the name that they get: a
    reader that is none of ours, say `holdfast.harnesses.mine.reader`."""
    wanted = [_RUNNER]
    for name in harnesses:
        wanted.append(reader_module(name))
        if guest_archive.find_source(driver_module(name)) is not None:
            wanted.append(driver_module(name))
    return guest_archive.pack(wanted, more)
