"""The command line. One module per noun, each imported only when its command is used; `--version` imports nothing."""

from __future__ import annotations

import os
import sys

from holdfast import __version__


def main() -> None:
    """The entry point of `holdfast`."""
    # bin/holdfast is a script that starts Python: only it knows how it was called itself.
    sys.argv[0] = os.environ.pop("HOLDFAST_CALLED_AS", sys.argv[0])
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write(f"holdfast {__version__}\n")
        return
    from holdfast.cli.app import run

    sys.exit(run(arguments))
