"""The files and commands that a box needs to be reachable over one byte stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final

from holdfast.guest import BRIDGE, GUEST

MODULES: Final = tuple(sorted((*GUEST, *BRIDGE)))
RUN: Final = "/.holdfast-run"
"""Where guest and bridge meet, and where the output of spawned processes is kept. Has to outlive a stop of the box."""
_FLAGS: Final = ("-I", "-S", "-B", "-X", "utf8")


def guest_files() -> Mapping[str, bytes]:
    """The guest's files by name: to be put into one folder of a box, where its user can read and not change them."""
    folder = resources.files("holdfast.guest")
    return {f"{name}.py": folder.joinpath(f"{name}.py").read_bytes() for name in MODULES}


def guest_command(
    python: Sequence[str], folder: str, *, box: str, run: str = RUN, options: Sequence[str] = ()
) -> list[str]:
    """Starts the guest: process 1 of the box. `python` is 3.9 or later, as a command; `folder` has the guest's files.

    It makes `run`, and forgets the processes that it finds there where they are of another box than `box`: those of a
    box that this one was copied from. `options` are the guest's own, say `processes=1000` or `unconfined`.
    """
    return [*python, *_FLAGS, f"{folder}/stream_server.py", "start", f"run={run}", f"box={box}", *options]


def bridge_command(python: Sequence[str], folder: str, *, run: str = RUN) -> list[str]:
    """Joins its stdin and stdout to the guest of the same `run`. It waits some seconds for a guest that comes up."""
    return [*python, *_FLAGS, f"{folder}/stream_server.py", "join", f"run={run}"]
