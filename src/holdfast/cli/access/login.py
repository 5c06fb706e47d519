"""`holdfast login`: a link that logs a browser in."""

from __future__ import annotations

from typing import Annotated

from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import connect
from holdfast.cli.terminal.console import Cell, is_terminal, write_field, write_json, write_line


def login(
    link: Annotated[bool, Option("--link", help="Print only the link.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Print a link that logs one browser in as you, once, within ten minutes. In a pipe, print only the link."""
    with connect(where) as client:
        made = client.logins.create_link()
        url = client.url.rstrip("/") + made.path
    if as_json:
        write_json({"url": url, "expiresAt": made.expires_at})
    elif link or not is_terminal():
        write_line(url)
    else:
        write_field("page", Cell(url, "bold"))
        write_field("", Cell("logs one browser in, within 10 minutes", "dim"))
