"""Terminals by the synchronous SDK, on a machine that is busy.

The SDK waits ten seconds for the first message of a terminal, in steps of 0.1 s. It means to go on after a step without
one, and fails: it expects a `TimeoutError`, but its WebSocket raises `queue.Empty`. Nothing of ours takes 0.1 s there,
but a process that does not get the processor does. The terminal is there all the same, and is connected to again.
"""

from __future__ import annotations

import queue
from contextlib import suppress
from typing import Any

from daytona._sync.process import Process
from daytona.handle.pty_handle import PtyHandle

_TRIES = 50


def create(process: Process, id: str, **options: Any) -> PtyHandle:
    with suppress(queue.Empty):
        return process.create_pty_session(id, **options)
    return connect(process, id)


def connect(process: Process, id: str) -> PtyHandle:
    for _ in range(_TRIES):
        with suppress(queue.Empty):
            return process.connect_pty_session(id)
    raise AssertionError("the SDK never read the first message of a terminal in time")
