"""Processes that Holdfast keeps in a box, found again by a mark in their arguments: services and workstations.

The mark has a kind, a name and a digest of what was started. So the box itself tells which of them run: a box that was
stopped, restored or forked has none, and there is no table that could disagree with it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Final

from holdfast.api.box.process import Process, ProcessInfo, ProcessState
from holdfast.api.errors.boxes import BoxError

_STOP_SECONDS: Final = 10.0
_SHOWN: Final = 2000
_MOST_READ: Final = 64 << 20


def mark_of(kind: str, name: str, about: Any) -> str:
    """Returns the last argument of a process. `about` is all that makes it another process, as JSON."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    return f"{kind}:{name}:{digest}"


def name_in(argv: Sequence[str], kind: str) -> str | None:
    """Returns the name of the process with these arguments, or None if it is of another kind."""
    found, _, rest = argv[-1].partition(":") if argv else ("", "", "")
    return rest.partition(":")[0] if found == kind else None


def running(processes: Sequence[ProcessInfo]) -> list[ProcessInfo]:
    return [each for each in processes if each.state is ProcessState.RUNNING]


def unwanted(processes: Sequence[ProcessInfo], kind: str, wanted: Collection[tuple[str, ...]]) -> list[str]:
    """Returns the running processes of a kind that have other arguments than the wanted ones."""
    return [each.id for each in running(processes) if name_in(each.argv, kind) is not None and each.argv not in wanted]


async def stop(process: Process) -> None:
    """End a process with all that it has started."""
    with suppress(BoxError, TimeoutError):
        await process.kill()
        await process.wait(_STOP_SECONDS)


async def last_output(process: Process) -> str:
    end, offset = b"", 0
    with suppress(BoxError):
        while offset < _MOST_READ and (piece := await process.read("stdout", offset)):
            offset += len(piece)
            end = (end + piece)[-_SHOWN:]
    return end.decode(errors="replace").strip()
