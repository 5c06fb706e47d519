"""Asks for confirmation before something is deleted permanently, or may run. Every command that asks takes `--yes`."""

from __future__ import annotations

import sys
from typing import Annotated

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.terminal.console import is_terminal

YesOption = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, *, refusal: str, command: str, unchanged: str) -> None:
    """Ask on a terminal; raise `CommandError` if there is none."""
    if not (sys.stdin.isatty() and is_terminal()):
        raise CommandError(refusal, next_step=command, exit=Exit.USAGE)
    import typer  # here, because it takes long

    try:
        agreed = typer.confirm(f"  {question}")
    except typer.Abort:
        raise KeyboardInterrupt from None
    if not agreed:
        raise CommandError(unchanged)


def confirm_end(verb: str, what: str, command: str, *, yes: bool) -> None:
    """Ask whether to delete, remove or revoke something. `command` with `--yes` does so without asking."""
    if not yes:
        confirm(
            f"{verb.capitalize()} {what}, permanently?",
            refusal=f"this would {verb} {what} permanently, and there is no terminal to ask for confirmation",
            command=f"{command} --yes",
            unchanged=f"{what}: nothing was changed",
        )
