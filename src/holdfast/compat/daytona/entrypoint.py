"""The entrypoint of a sandbox: the command that its snapshot or its Dockerfile names, run when the sandbox starts.

It is the only command of a session of its own, so its output is kept and followed as that of any session.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from holdfast.api.box.box import Box
from holdfast.compat.daytona.in_box import bootstrap
from holdfast.compat.daytona.toolbox.frames import following
from holdfast.time_limit import time_limit

SESSION: Final = "entrypoint"
_PROGRAM: Final = "session"
_BEGIN_SECONDS: Final = 60.0


async def begin(box: Box, words: Sequence[str], env: Mapping[str, str]) -> None:
    """Raises `BoxError` or `TimeoutError`."""
    argv = bootstrap.argv(await box.python(), _PROGRAM, SESSION)
    process = await box.spawn(argv, env=env, stdin=True)
    await process.write(bootstrap.stdin(_PROGRAM))
    message = {"op": "run", "id": SESSION, "command": shlex.join(words), "echo": False}
    await process.write(json.dumps(message).encode() + b"\n")
    async with time_limit(_BEGIN_SECONDS):
        async for _ in following(process, 0):
            return  # from now on its session shows it
