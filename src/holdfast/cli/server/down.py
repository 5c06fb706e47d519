"""`holdfast down`: stops the server of a home. Threads, boxes and runs are not affected."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import ask, ensure_server, home_or_default
from holdfast.cli.terminal.console import hint, write_field, write_json
from holdfast.client.local_server import RunningServer, find_running, is_alive
from holdfast.storage import maintenance

if TYPE_CHECKING:
    from holdfast.client import Client

_PATIENCE: Final = 30.0
_PAUSE: Final = 0.05


def down(
    everything: Annotated[bool, Option("--all", help="Also stop its boxes, and the runs in them.")] = False,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop the server on this machine. Boxes and runs continue; holdfast up finds them again.

    With --all, boxes are stopped too, which ends the runs in them. Their files stay.
    """
    folder = home_or_default(home)
    where = Where(None, None, folder)
    if everything and maintenance.is_there(folder):
        # Boxes outlive their server, and only a running server can stop them. Others may have its port by now.
        ensure_server(where, anywhere=True)
    running = find_running(folder)
    if running is None:
        raise CommandError(
            f"no server is running on {folder}", next_step="start one with holdfast up", exit=Exit.UNREACHABLE
        )
    stopped = _stop_boxes(where) if everything else []
    stop_server(folder, running)
    if as_json:
        write_json({"home": str(folder), "pid": running.pid, "stopped": True, "boxes": stopped})
        return
    for id in stopped:
        write_field("stopped", f"box {id}")
    kept = "boxes keep their files" if everything else "boxes and runs continue"
    write_field("stopped", running.url, hint(f"  {kept}; holdfast up finds them again"))


def stop_server(folder: Path, running: RunningServer) -> None:
    """Stop the server of a home, and wait until it has ended."""
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
            raise CommandError(
                f"the server of {folder} (pid {running.pid}) does not stop",
                next_step=f"kill -9 {running.pid}: nothing that was acknowledged is lost, and boxes keep running",
            )
        time.sleep(_PAUSE)


def _stop_boxes(where: Where) -> list[str]:
    """Stop all running boxes. Returns their ids. If one cannot be stopped, the command fails, and the server stays."""

    async def work(client: Client) -> list[str]:
        from holdfast.api.errors.boxes import BoxGone, BoxNotFound

        stopped: list[str] = []
        async for row in client.boxes.list():
            if row.state != "stopped":
                with contextlib.suppress(BoxGone, BoxNotFound):  # deleted meanwhile
                    await client.boxes.stop(row.id)
                    stopped.append(row.id)
        return stopped

    return ask(where, work)
