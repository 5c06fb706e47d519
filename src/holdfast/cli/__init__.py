"""The command line. One module per noun, each imported only when its command is used; `--version` imports nothing."""

from __future__ import annotations

import gc
import os
import sys

from holdfast import __version__

_GARBAGE_THRESHOLD = 50_000
"""New objects before Python collects garbage. Starting a command makes fewer, and almost none of them is garbage."""


def main() -> None:
    """The entry point of `holdfast`."""
    # Only the script bin/holdfast, which starts Python, knows the name it was called by.
    sys.argv[0] = os.environ.pop("HOLDFAST_CALLED_AS", sys.argv[0])
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write(f"holdfast {__version__}\n")
        return
    if arguments[:1] != ["up"]:  # a server runs for long, and does make garbage
        gc.set_threshold(_GARBAGE_THRESHOLD)
    from holdfast.cli.app import run

    try:
        sys.exit(run(arguments))
    finally:
        gc.freeze()  # otherwise Python scans all objects once more while it exits
