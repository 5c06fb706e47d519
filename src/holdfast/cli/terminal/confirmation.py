"""Asking before something is gone for good. Every command that deletes asks alike, and takes `--yes`."""

from __future__ import annotations

import sys
from typing import Annotated

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.parameters import Option
from holdfast.cli.terminal.console import is_terminal

YesOption = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, *, refusal: str, command: str, unchanged: str) -> None:
    """Ask a person; refuse where there is none."""
    if not (sys.stdin.isatty() and is_terminal()):
        raise CommandError(refusal, next_step=command, exit=Exit.USAGE)
    import typer  # here: it takes long to import, and most commands ask nothing

    try:
        agreed = typer.confirm(f"  {question}")
    except typer.Abort:
        raise KeyboardInterrupt from None
    if not agreed:
        raise CommandError(unchanged)


def confirm_end(verb: str, what: str, command: str, *, yes: bool) -> None:
    """Ask whether something is to be deleted, removed or revoked; `command` does so without asking."""
    if not yes:
        confirm(
            f"{verb.capitalize()} {what}, for good?",
            refusal=f"to {verb} {what} is for good, and there is nobody to ask",
            command=f"{command} --yes",
            unchanged=f"{what}: nothing was changed",
        )
