"""Terminals of a session: shells in its box, which browsers connect to, leave and come back to.

A terminal is a process in the box. The words of its command name it, so it is found again by any server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Final

from holdfast.api.box.box import Box
from holdfast.api.box.process import Chunk, Process, ProcessInfo, ProcessState
from holdfast.api.errors import Conflict, Forbidden, InvalidRequest
from holdfast.api.errors.boxes import BoxError
from holdfast.boxes.process_output import find_end
from holdfast.gateway.terminal.protocol import Hello

log = logging.getLogger(__name__)

MAIN: Final = "main"
MOST: Final = 16
"""Terminals of one session."""
REPLAYED: Final = 256 * 1024
"""How much of what a terminal printed before is sent to who connects to it."""
INTERNAL_API: Final = "HOLDFAST_API"
"""The variable of a shell that has the URL of the internal API."""
_MARK: Final = "holdfast-terminal"
_COMMAND: Final = (
    "/bin/sh",
    "-c",
    "if command -v bash >/dev/null 2>&1; then exec bash -il; fi; exec sh -i",
    _MARK,
)
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")
_LOCKS: Final = 1024


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"terminal {name[:80]!r} is not 1 to 32 letters, digits, '_' or '-'")
    return name


def name_of(info: ProcessInfo) -> str | None:
    """The name of a terminal. None for another process."""
    if info.argv[:-1] != _COMMAND or not info.pty:
        return None
    return info.argv[-1]


class Terminals:
    """Finds the terminals of boxes, and starts them."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, asyncio.Lock] = OrderedDict()

    async def open(self, box: Box, name: str, hello: Hello, *, may_start: bool) -> Process:
        """Returns the terminal of this name. Starts it if there is none."""
        async with self._turn(box.id):
            running = {
                known: info
                for info in await box.processes()
                if info.state is ProcessState.RUNNING and (known := name_of(info)) is not None
            }
            if name in running:
                return await box.process(running[name].id)
            if not may_start:
                raise Forbidden(f"there is no terminal {name}, and a viewer cannot start one")
            if len(running) >= MOST:
                raise Conflict(f"a session has at most {MOST} terminals: end a shell first")
            return await box.spawn(
                [*_COMMAND, name],
                env={"TERM": "xterm-256color", **await _internal_api(box)},
                stdin=True,
                pty=True,
                rows=hello.rows,
                columns=hello.columns,
            )

    @contextlib.asynccontextmanager
    async def _turn(self, box: str) -> AsyncIterator[None]:
        """One at a time for each box, so that no terminal is started twice."""
        lock = self._turns.setdefault(box, asyncio.Lock())
        self._turns.move_to_end(box)
        if len(self._turns) > _LOCKS:
            oldest = next(iter(self._turns))
            if not self._turns[oldest].locked():
                del self._turns[oldest]
        async with lock:
            yield


async def _internal_api(box: Box) -> dict[str, str]:
    """Tells a shell where the internal API is, which is opened for it. Some providers have none."""
    try:
        return {INTERNAL_API: f"{(await box.open_guest_api()).rstrip('/')}/api"}
    except BoxError as error:
        log.info("terminals of box %s have no internal API: %s", box.id, error)
        return {}


async def replay_of(process: Process, offset: int | None) -> tuple[int, int]:
    """Returns where the output begins that a client gets, and where the old one ends now.

    It begins where the client left off, or at a line not far from the end.

    A client whose offset is beyond what there is had another terminal of this name.
    """
    end = await find_end(process, REPLAYED)
    end += len(await process.read("stdout", end, REPLAYED))  # a little was missing
    if offset is not None and (offset == 0 or await process.read("stdout", offset - 1, 1)):
        return offset, max(offset, end)
    start = max(0, end - REPLAYED)
    if not start:
        return 0, end
    # Not in the middle of a line, where it could be in the middle of a character or of a command to the terminal.
    line = (await process.read("stdout", start, 8192)).find(b"\n")
    return start + line + 1, end


def follow(process: Process, offset: int) -> AsyncIterator[Chunk]:
    return process.output("stdout", offset)
