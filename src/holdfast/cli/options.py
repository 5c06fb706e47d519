"""Options that many commands share, so that they look and mean the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.command_name import remember_home, remember_server
from holdfast.cli.completion import complete_thread

HomeOption = Annotated[
    Path | None,
    typer.Option("--home", metavar="DIR", help="Data folder.  [env: HOLDFAST_HOME]", callback=remember_home),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Server to use; else the home's.  [env: HOLDFAST_URL]",
        callback=remember_server,
    ),
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option("--api-key", metavar="KEY", help="API key or thread token.  [env: HOLDFAST_API_KEY]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
ThreadArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Id of the thread, or its beginning.", show_default=False, autocompletion=complete_thread
    ),
]
