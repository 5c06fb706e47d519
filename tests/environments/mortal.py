"""A server that kills itself at a step of a setup, as a file beside its home says. Loaded in the server's process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.boxes.service.boxes import Boxes
from holdfast.environments import setup
from holdfast.environments.setup import BUILDING, SETUP, Setups
from holdfast.server.config import Settings
from holdfast.server.egress import Outside
from holdfast.storage.sqlite.boxes import SqliteBoxes
from holdfast.testing.outside import nowhere

STEPS: dict[str, bool] = {
    "before the box": False,
    "before its row": False,
    "before a command": False,
    "before the snapshot": False,
    "after the snapshot": True,
    "after the box": True,
}
"""Where the server dies, and whether there is a setup by then."""


def fate(home: Path) -> Path:
    return home.with_name("fate")


def outside_of_a_mortal(settings: Settings) -> Outside:
    step = fate(settings.home).read_text() if fate(settings.home).exists() else ""
    match step:
        case "before the box":
            _die_at(Boxes, "create", lambda _, spec, *more: BUILDING in spec.labels)
        case "before its row":
            _die_at(SqliteBoxes, "insert", lambda _, row: BUILDING in row.labels)
        case "before a command":
            _die_at(setup, "_execute", lambda box, command, *more: command == "echo two > two")
        case "before the snapshot" | "after the snapshot":
            _die_at(Boxes, "snapshot", lambda _, id, labels: SETUP in labels, after=step.startswith("after"))
        case "after the box":
            _die_at(Setups, "_delete_box", lambda _, id: True, after=True)
    return nowhere(settings)


def _die_at(owner: Any, name: str, here: Callable[..., bool], *, after: bool = False) -> None:
    """Let a method kill this process, before or after it has done its work."""
    work = getattr(owner, name)

    async def method(*given: Any) -> Any:
        if not after and here(*given):
            os.kill(os.getpid(), signal.SIGKILL)
        made = await work(*given)
        if after and here(*given):
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    setattr(owner, name, method)
