"""`holdfast down`: stops the server of a home. Threads, boxes and the runs in them stay as they are."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

import typer

from holdfast.cli.console import hint, write_field, write_json
from holdfast.cli.discovery import the_home
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption
from holdfast.local_server import find_answering, is_alive

_PATIENCE: Final = 30.0
_PAUSE: Final = 0.05


def register(app: typer.Typer, _wanted: str | None = None) -> None:
    app.command("down")(down)


def down(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Stop the server that runs on this machine. Boxes and runs go on; holdfast up finds them again."""
    folder = the_home(home)
    running = find_answering(folder)
    if running is None:
        raise CommandError(f"no server runs on {folder}", exit=Exit.UNREACHABLE)
    try:
        os.kill(running.pid, signal.SIGTERM)
    except ProcessLookupError:
        pass
    except PermissionError:
        raise CommandError(
            f"the server of {folder} (pid {running.pid}) belongs to another user", exit=Exit.NOT_AUTHORISED
        ) from None
    deadline = time.monotonic() + _PATIENCE
    while is_alive(running.pid):
        if time.monotonic() > deadline:
            raise CommandError(f"the server of {folder} (pid {running.pid}) does not stop", next_step="look at its log")
        time.sleep(_PAUSE)
    if as_json:
        write_json({"home": str(folder), "pid": running.pid, "stopped": True})
    else:
        write_field("stopped", running.url, hint("  boxes and runs go on; holdfast up finds them again"))
