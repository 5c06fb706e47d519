"""Runs a command on this machine. If the caller is cancelled, the command and its children are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors.agents import CannotInstall
from holdfast.time_limit import time_limit

_KEPT: Final = 16_384
_PIECE: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    output: str
    """The end of its stdout and stderr."""


async def run(argv: Sequence[str], *, seconds: float, cwd: Path | None = None) -> Done:
    """Run with the environment of this process, which has the user's settings for npm, mirrors and proxies.

    Created files are readable by all users. Raises `CannotInstall` if the command cannot start or times out.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            # Not with `umask=`, which the server's event loop does not support.
            *("/bin/sh", "-c", 'umask 022 && exec "$@"', "sh", *argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as error:
        raise CannotInstall(f"cannot start {argv[0]}: {error.strerror}") from None
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
