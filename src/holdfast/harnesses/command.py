"""Runs a command of this machine to its end. Whatever happens to who waits for it, nothing of it stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.harnesses.errors import CannotInstall
from holdfast.time_limit import time_limit

_KEPT: Final = 16_384
_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    output: str
    """The end of what it printed, errors too."""


async def run(argv: Sequence[str], *, seconds: float, cwd: Path | None = None) -> Done:
    """With the environment of this process: the user's settings of npm, mirrors and proxies are there.

    What it makes can be read by everybody. Raises `CannotInstall` where it cannot be started or takes too long.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            # Not by `umask=`: the server's event loop does not know that.
            *("/bin/sh", "-c", 'umask 022 && exec "$@"', "sh", *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise CannotInstall(f"{argv[0]} cannot be started: {error.strerror}") from None
    assert process.stdout is not None
    kept = b""
    try:
        async with time_limit(seconds):
            while piece := await process.stdout.read(_PIECE):
                kept = (kept + piece)[-_KEPT:]
            code = await process.wait()
    except TimeoutError:
        raise CannotInstall(f"{Path(argv[0]).name} did not end within {seconds:.0f} s", hint="try again") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        if process.returncode is None:
            await process.wait()
    return Done(code, kept.decode(errors="replace"))
