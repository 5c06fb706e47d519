"""Options that many commands share, declared once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from holdfast.cli.command_name import remember_home, remember_server
from holdfast.cli.completion import complete_thread
from holdfast.cli.parsing.parameters import Argument, Option, OptionGroup

HomeOption = Annotated[
    Path | None, Option("--home", metavar="DIR", help="Data folder.  [env: HOLDFAST_HOME]", callback=remember_home)
]
ServerOption = Annotated[
    str | None,
    Option(
        "--server",
        metavar="URL",
        help="Server to use. Default: the home's.  [env: HOLDFAST_URL]",
        callback=remember_server,
    ),
]
ApiKeyOption = Annotated[
    str | None, Option("--api-key", metavar="KEY", help="API key or thread token.  [env: HOLDFAST_API_KEY]")
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON, for programs.")]
QuietOption = Annotated[bool, Option("--quiet", "-q", help="Print only ids.")]
LimitOption = Annotated[int, Option("--limit", "-n", min=1, help="Print at most this many.")]
LabelsOption = Annotated[
    list[str] | None, Option("--label", metavar="NAME:VALUE", help="Add a label. Can be given several times.")
]
ThreadArgument = Annotated[
    str,
    Argument(
        metavar="ID",
        help="Id of the thread, or the beginning of it.",
        show_default=False,
        autocompletion=complete_thread,
    ),
]


@dataclass(frozen=True)
class Where(OptionGroup):
    """The server that the command line names."""

    server: ServerOption = None
    api_key: ApiKeyOption = None
    home: HomeOption = None
