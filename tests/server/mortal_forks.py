"""A server that kills itself at a step of a checkpoint, a fork or a rewind, as a file beside its home says.

Loaded in the server's process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.service.removal import Removal
from holdfast.runs.checkpoint.forks import Forks
from holdfast.runs.launch.box import LaunchBoxes
from holdfast.runs.run_log import RunLog
from holdfast.server.config import Settings
from holdfast.server.egress import Outside
from holdfast.testing.outside import nowhere
from holdfast.threads.lineage import CHECKPOINT

STEPS: Final = {
    "checkpoint": ("before the snapshot", "after the snapshot", "after the entry"),
    "fork": ("before the thread", "after the thread", "after the box"),
    "rewind": (
        "before the trial",
        "after the trial",
        "after its removal",
        "before the snapshot",
        "after the snapshot",
        "before the box",
        "after the old box",
        "after the box",
    ),
}
REWOUND: Final = ("before the box", "after the old box", "after the box")
"""The steps of a rewind after its entry."""


def fate(home: Path) -> Path:
    return home.with_name("fate")


def outside_of_a_mortal(settings: Settings) -> Outside:
    told = fate(settings.home)

    def mortal(owner: Any, name: str, step: str, matches: Callable[..., bool] = lambda *given, **named: True) -> None:
        """Let a method kill this process, before or after it has done its work."""
        work = getattr(owner, name)

        def die(when: str) -> None:
            if told.exists() and told.read_text() == f"{when} {step}":
                os.kill(os.getpid(), signal.SIGKILL)

        async def method(*given: Any, **named: Any) -> Any:
            is_here = matches(*given, **named)
            if is_here:
                die("before")
            made = await work(*given, **named)
            if is_here:
                die("after")
            return made

        setattr(owner, name, method)

    mortal(Boxes, "snapshot", "the snapshot")
    mortal(RunLog, "append", "the entry", lambda _, thread, *entries, **more: _is_checkpoint(entries))
    mortal(Forks, "_create", "the thread")
    mortal(LaunchBoxes, "start_from", "the box")
    mortal(Boxes, "restore", "the trial")
    mortal(Boxes, "delete", "its removal")
    mortal(Removal, "remove_judged", "the old box")
    return nowhere(settings)


def _is_checkpoint(entries: tuple[Any, ...]) -> bool:
    return any(each.payload["type"] == CHECKPOINT for each in entries)
