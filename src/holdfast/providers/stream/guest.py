"""The files and commands that a box needs to be reachable over one byte stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final

from holdfast.guest.init import BRIDGE, GUEST

MODULES: Final = tuple(sorted((*GUEST, *BRIDGE)))
RUN: Final = "/.holdfast-run"
"""Where the guest and the bridge meet, and where the output of spawned processes is stored. Must survive a stop."""
_FLAGS: Final = ("-I", "-S", "-B", "-X", "utf8")


def guest_files() -> Mapping[str, bytes]:
    """Returns the guest's files by name. They go into one folder of a box, which its user can read but not change."""
    folder = resources.files("holdfast.guest.init")
    return {f"{name}.py": folder.joinpath(f"{name}.py").read_bytes() for name in MODULES}


def guest_command(
    python: Sequence[str], folder: str, *, box: str, run: str = RUN, options: Sequence[str] = ()
) -> list[str]:
    """Returns the command of the guest: process 1 of the box. `python` is 3.9 or later; `folder` has the guest's files.

    The guest creates `run`. If it finds processes of another box there, from which this one was copied, it forgets
    them. `options` are the guest's own, such as `processes=1000` or `unconfined`.
    """
    return [*python, *_FLAGS, f"{folder}/stream_server.py", "start", f"run={run}", f"box={box}", *options]


def bridge_command(python: Sequence[str], folder: str, *, run: str = RUN) -> list[str]:
    """Connects its stdin and stdout to the guest with the same `run`. Waits some seconds for a guest that starts."""
    return [*python, *_FLAGS, f"{folder}/stream_server.py", "join", f"run={run}"]
