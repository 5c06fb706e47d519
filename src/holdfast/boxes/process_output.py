"""Where the output of a process ends: for readers that want to see only the last part of it."""

from __future__ import annotations

from typing import Final

from holdfast.api.box.process import Process

_FARTHEST: Final = 1 << 50


async def find_end(process: Process, within: int) -> int:
    """Returns how much a process has printed so far, at most `within / 16` bytes too little. A process does not tell,
    so it is found by reading single bytes."""
    known, beyond = 0, within + 1
    while beyond < _FARTHEST and await process.read("stdout", beyond - 1, 1):
        known, beyond = beyond, beyond * 4
    while known + within // 16 < beyond:
        middle = (known + beyond) // 2
        if await process.read("stdout", middle - 1, 1):
            known = middle
        else:
            beyond = middle
    return known
