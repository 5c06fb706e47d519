"""`holdfast interpreter jupyter`: notebooks that run in boxes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption, ServerOption
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.terminal.console import Cell, is_terminal, write_field, write_json, write_line

NameOption = Annotated[str, Option("--name", metavar="NAME", help="Name of the kernel in Jupyter.")]


def install(
    name: NameOption = "holdfast",
    title: Annotated[str | None, Option("--title", metavar="TEXT", help="Name to display.")] = None,
    template: Annotated[str | None, Option("--template", metavar="NAME", help="Template of its boxes.")] = None,
    model: Annotated[str | None, Option("--model", metavar="NAME", help="Model for llm_query.")] = None,
    prefix: Annotated[
        Path | None, Option("--prefix", metavar="DIR", help="Install into this folder instead of the user's.")
    ] = None,
    in_environment: Annotated[
        bool, Option("--sys-prefix", help="Install into the Python environment of this command.")
    ] = False,
    server: ServerOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Install the kernel in Jupyter. Each notebook gets a box of its own, which is deleted when it is closed.

    \b
    holdfast interpreter jupyter install
    jupyter lab
    """
    kernelspec = _kernelspec()
    options = {key: value for key, value in {"template": template, "model": model}.items() if value}
    # Jupyter may be started with another environment, so the kernel keeps today's choice of server.
    chosen = {"HOLDFAST_HOME": str(home.resolve()) if home else os.environ.get("HOLDFAST_HOME"),
              "HOLDFAST_URL": server or os.environ.get("HOLDFAST_URL")}  # fmt: skip
    env = {key: value for key, value in chosen.items() if value}
    spec = kernelspec.kernel_spec(display_name=title or kernelspec.DISPLAY_NAME, options=options, env=env)
    place = sys.prefix if in_environment else prefix
    try:
        made = kernelspec.install(spec, name=name, prefix=None if place is None else str(place))
    except (OSError, ValueError) as error:
        raise CommandError(f"cannot install the kernel: {error}", next_step="try --sys-prefix") from None
    if as_json:
        write_json({"name": name, "path": str(made), "spec": spec})
    elif is_terminal():
        write_field("kernel", Cell(name, "bold"))
        write_field("path", Cell(str(made)))
        write_field("next", Cell(f"jupyter console --kernel {name}, or select it in a notebook", "dim"))
    else:
        write_line(str(made))


def remove(name: NameOption = "holdfast") -> None:
    """Remove the kernel from Jupyter."""
    kernelspec = _kernelspec()
    try:
        removed = kernelspec.remove(name)
    except KeyError:
        raise CommandError(
            f"Jupyter has no kernel {name}",
            next_step="list kernels with jupyter kernelspec list",
            exit=Exit.NOT_FOUND,
        ) from None
    write_line(str(removed))


def _kernelspec() -> ModuleType:
    try:
        from holdfast.interpreter import kernelspec
    except ImportError as error:
        raise CommandError(
            f"this needs Jupyter's libraries: {error}", next_step="pip install 'holdfast[jupyter]'", exit=Exit.FAILURE
        ) from None
    return kernelspec
