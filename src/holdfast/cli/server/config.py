"""`holdfast config`: the settings that a server of this home would have, and where each comes from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from holdfast.cli.options import HomeOption, JsonOption
from holdfast.cli.parsing.parameters import OptionsUsed
from holdfast.cli.server.provider_options import NO_PROVIDER_OPTIONS, ProviderOptions
from holdfast.cli.server.server_options import FILE, NO_SERVER_OPTIONS, Chosen, ServerOptions, Source, choose
from holdfast.cli.session import home_or_default
from holdfast.cli.terminal.console import Cell, write_field, write_json, write_table
from holdfast.client.local_server import find_running

_HIDDEN: Final = "(hidden)"


def show(
    used: OptionsUsed,
    home: HomeOption = None,
    server_options: ServerOptions = NO_SERVER_OPTIONS,
    provider_options: ProviderOptions = NO_PROVIDER_OPTIONS,
    as_json: JsonOption = False,
) -> None:
    """Show each setting of the server, and where it comes from: option, environment, holdfast.toml or default.

    Takes the options of holdfast up, and shows what a server would have with them. Secrets are hidden. A server that
    runs now may have others: a command that starts one takes a free port if that of the settings is taken.
    """
    folder = home_or_default(home)
    chosen = choose(server_options, provider_options, used, os.environ, folder)
    running = find_running(folder)
    if as_json:
        settings = [
            {"name": each.name, "value": _plain(each), "source": each.source.value, "place": each.place or None}
            for each in chosen
        ]
        write_json({"file": str(folder / FILE), "settings": settings, "running": running and running.url})
        return
    write_field("file", str(folder / FILE), Cell("" if (folder / FILE).is_file() else "   not there", "dim"))
    if running is not None:
        write_field("server", running.url, Cell("   runs now, with the settings that it was started with", "dim"))
    rows = [
        (
            each.name,
            _text(each),
            Cell(each.source.value, "dim" if each.source is Source.DEFAULT else "green"),
            Cell("" if each.source is Source.FILE else each.place, "dim"),
        )
        for each in chosen
    ]
    write_table(("setting", "value", "from", ""), rows)


def _plain(each: Chosen) -> Any:
    if each.secret and each.value is not None:
        return _HIDDEN
    if isinstance(each.value, Path):
        return str(each.value)
    return list(each.value) if isinstance(each.value, tuple) else each.value


def _text(each: Chosen) -> str:
    plain = _plain(each)
    if isinstance(plain, list):
        return ", ".join(plain) or "none"
    if isinstance(plain, bool):
        return "yes" if plain else "no"
    return "none" if plain in (None, "") else str(plain)
