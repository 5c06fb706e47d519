"""`holdfast provider setup`: makes a machine of the user ready for agents. Values come from files or variables."""

from __future__ import annotations

import os
from pathlib import Path  # the command line is read by these types
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.box.health import step_lines
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.provider.commands import NameArgument
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import hint, write_field, write_json, write_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.api.box.records import Step
    from holdfast.api.providers import ProviderTrial
    from holdfast.client import Client

_STEP_WIDTH = len("environment")


def setup(
    name: NameArgument,
    machine: Annotated[
        str, Argument(metavar="MACHINE", help="Name of your sprite, or id of a box.", show_default=False)
    ],
    agent: Annotated[
        list[str] | None, Option(metavar="NAME", help="Agent to put there. Can be given several times. Default: pi.")
    ] = None,
    env: Annotated[
        list[str] | None,
        Option(metavar="NAME", help="Variable to put there, with its value here. Can be given several times."),
    ] = None,
    env_file: Annotated[
        list[Path] | None,
        Option(metavar="FILE", help="File with lines of NAME=VALUE to put there. Later files win."),
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Make a sprite ready: node, agents and environment. Prints how long each step takes. Exits with 1 if one fails.

    What you have there is not replaced: programs and variables of the same name are kept. Doing it twice changes
    nothing. A sprite that does not exist is created. Values of variables are never shown.

    \b
    holdfast provider setup sprites mine --env-file .env
    holdfast provider setup sprites mine --agent pi --agent claude --env GITHUB_TOKEN
    """
    variables = read_variables(env_file or (), env or (), os.environ)

    def show(step: Step) -> None:
        for line in step_lines([step], _STEP_WIDTH):
            write_line(*line)

    async def work(client: Client) -> ProviderTrial:
        on_step = None if as_json else show
        return await client.providers.set_up(
            name, machine, agents=agent or ["pi"], environment=variables, on_step=on_step
        )

    trial = ask(where, work)
    if as_json:
        write_json(trial.to_json())
    elif trial.ok:
        write_field("next", hint(f"sprite exec -s {machine} -- sh -lc '{(agent or ['pi'])[0]} --help'"))
    return Exit.OK if trial.ok else Exit.FAILURE


def read_variables(files: Sequence[Path], names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Read variables from files, then by name from the environment. Empty ones are left out. No error has a value."""
    found: dict[str, str] = {}
    for file in files:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise CommandError(f"cannot read {file}: {why}", exit=Exit.USAGE) from None
        for number, line in enumerate(lines, 1):
            text = line.strip().removeprefix("export ")
            if not text or text.startswith("#"):
                continue
            name, equals, value = text.partition("=")
            if not equals or not name.strip().isidentifier():
                raise CommandError(
                    f"line {number} of {file} is not NAME=VALUE", next_step="see holdfast provider setup --help",
                    exit=Exit.USAGE,
                )  # fmt: skip
            found[name.strip()] = _unquoted(value.strip())
    for name in names:
        if "=" in name:
            raise CommandError(
                f"--env {name.partition('=')[0]} takes the value from the environment: others can read command lines",
                next_step="export it first, or use --env-file",
                exit=Exit.USAGE,
            )
        if name not in environment:
            raise CommandError(f"the environment has no {name}", next_step="export it first", exit=Exit.USAGE)
        found[name] = environment[name]
    return {name: value for name, value in found.items() if value}


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"" else value
