"""Commands that need a server and start one where none runs: in the background, said in one line, stopped by `down`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.cli.discovery import the_home
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import Where
from holdfast.cli.terminal.console import hint, note
from holdfast.client.local_server import RunningServer, ServerNotStarted, find_or_start

_PATIENCE: Final = 5.0


def ensure_server(where: Where) -> None:
    """Start a server on the home where the command means that home and none answers there."""
    if where.server is not None or (where.home is None and os.environ.get("HOLDFAST_URL")):
        return
    began = time.monotonic()
    running, started = find_or_start_server(the_home(where.home))
    if started:
        took = f"  {time.monotonic() - began:.1f} s"
        note("server", running.url, hint(f"  started in the background; holdfast down stops it{took}"))
    elif not _answers(running.url):
        note(
            "waiting",
            f"for the server at {running.url}, which takes connections and has not answered for {_PATIENCE:g} s; "
            f"its process is {running.pid}",
            hint(f"  where it hangs: kill -9 {running.pid}, and run the command again; boxes go on"),
        )


def _answers(url: str) -> bool:
    """Whether it answers soon. The kernel takes connections also for a server that is stopped or stuck."""
    from http.client import HTTPConnection, HTTPException

    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_PATIENCE)
    try:
        connection.request("GET", "/health")
        connection.getresponse()
    except TimeoutError:
        return False
    except (OSError, HTTPException):
        return True  # another trouble, which the command tells itself
    finally:
        connection.close()
    return True


def find_or_start_server(home: Path) -> tuple[RunningServer, bool]:
    """The server of a home, and whether it was started just now."""
    try:
        return find_or_start(home)
    except ServerNotStarted as error:
        raise CommandError(error.message, next_step=error.hint, exit=Exit.UNREACHABLE) from None
