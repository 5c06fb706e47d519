"""The command line. One module per noun, each imported only when its command is used; `--version` imports nothing."""

from __future__ import annotations

import sys

from holdfast import __version__


def main() -> None:
    """The entry point of `holdfast`."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write(f"holdfast {__version__}\n")
        return
    from holdfast.cli.app import run

    sys.exit(run(arguments))
