"""Starts a server in the background, for commands that need one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.cli.discovery import home_or_default
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import Where
from holdfast.cli.terminal.console import hint, note
from holdfast.local_server import RunningServer, ServerNotStarted, find_or_start

_PATIENCE: Final = 5.0


def ensure_server(where: Where) -> None:
    """Start a server on the home, if the command uses that home and no server answers there."""
    if where.server is not None or (where.home is None and os.environ.get("HOLDFAST_URL")):
        return
    began = time.monotonic()
    running, started = find_or_start_server(home_or_default(where.home))
    if started:
        took = f"  {time.monotonic() - began:.1f} s"
        note("server", running.url, hint(f"  started in the background; stop it with holdfast down{took}"))
    elif not _answers(running.url):
        note(
            "waiting",
            f"for the server at {running.url}, which accepts connections but has not answered for {_PATIENCE:g} s; "
            f"its process is {running.pid}",
            hint(f"  if it hangs: kill -9 {running.pid}, and run the command again; boxes keep running"),
        )


def _answers(url: str) -> bool:
    """Whether it answers soon. The kernel accepts connections even for a server that hangs."""
    from http.client import HTTPConnection, HTTPException

    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_PATIENCE)
    try:
        connection.request("GET", "/health")
        connection.getresponse()
    except TimeoutError:
        return False
    except (OSError, HTTPException):
        return True  # another problem, which the command itself will report
    finally:
        connection.close()
    return True


def find_or_start_server(home: Path) -> tuple[RunningServer, bool]:
    """Return the server of a home, and whether it was started just now."""
    try:
        return find_or_start(home)
    except ServerNotStarted as error:
        raise CommandError(error.message, next_step=error.hint, exit=Exit.UNREACHABLE) from None
