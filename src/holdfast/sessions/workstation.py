"""The workstation in the box of a session: its programs are started by a supervisor in the box, and asked for.

What the box says about its programs is shown to people, and no right depends on it: programs in the box can change it.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import BoxError
from holdfast.api.session.sessions import SessionStep, StepState
from holdfast.box_json import parse
from holdfast.boxes import guest_archive
from holdfast.boxes.marked_processes import mark_of, running, stop, unwanted
from holdfast.boxes.workspace_copy import home_of
from holdfast.sessions.programs import CLEAN, PROGRAMS, WorkstationProgram
from holdfast.time_limit import time_limit
from holdfast.visible_text import visible

_KIND: Final = "holdfast-workstation"
_ENTRY: Final = "holdfast.guest.service_supervisor"
_EARLY: Final = ("json", "select", "shutil", "signal", "socket", "subprocess", "time")
_STATUS: Final = ".holdfast/workstation/status.json"
_FEED_SECONDS: Final = 30.0
_LOOKS: Final = 25
_LOOK_SECONDS: Final = 0.2
_MOST_STATUS: Final = 256 * 1024
_MOST_TEXT: Final = 4096
_LINES: Final = 20
_LARGEST: Final = 1 << 53
_TOLD: Final = frozenset(each for each in StepState if each is not StepState.DONE)
SETTLED: Final = frozenset({StepState.RUNNING, StepState.MISSING, StepState.BLOCKED, StepState.FAILED})
"""States that a program stays in, if nothing happens."""


async def start_workstation(box: Box) -> str:
    """Start the supervisor of a workstation, if it does not run. Returns its process. Its programs start meanwhile.

    A supervisor of another version is replaced, with all that it has started. So is one that never got its programs,
    because the server was killed at that moment.
    """
    argv = await _argv(box)
    home = await home_of(box)
    known = await box.processes()
    for id in unwanted(known, _KIND, {argv}):
        await stop(await box.process(id))
    for each in running(known):
        if each.argv == argv:
            if await _reports(box, home, each.id):
                return each.id
            await stop(await box.process(each.id))
    process = await box.spawn(argv, cwd=box.spec.workdir, stdin=True, tree=True)
    configuration = {
        "status": f"{home}/{_STATUS}",
        "generation": process.id,
        "clean": [f"{home}/{each}" for each in CLEAN],
        "programs": [each.to_json(home) for each in PROGRAMS],
    }
    try:
        async with time_limit(_FEED_SECONDS):
            await process.write(guest_archive.stdin_of(guest_archive.pack([_ENTRY]), configuration))
            await process.close_stdin()
    except BaseException:
        await stop(process)
        raise
    return process.id


async def is_supervised(box: Box) -> bool:
    """Returns whether the supervisor of this version runs in a box."""
    argv = await _argv(box)
    return any(each.argv == argv for each in running(await box.processes()))


async def read_workstation(box: Box, home: str) -> tuple[SessionStep, ...]:
    """Returns what became of the programs of a workstation, as the box tells it. `home` is the home folder there."""
    argv = await _argv(box)
    supervisors = [each.id for each in running(await box.processes()) if each.argv == argv]
    if not supervisors:
        return tuple(unknown_step(each, StepState.STOPPED) for each in PROGRAMS)
    return parse_status(await _read_status(box, home), supervisors[0], quote(box.spec.workdir))


async def _read_status(box: Box, home: str) -> object:
    """Returns what the status file has, or None if there is none yet, or something else."""
    try:
        return parse(await box.files.read(f"{home}/{_STATUS}", length=_MOST_STATUS))
    except (BoxError, ValueError):
        return None


async def _reports(box: Box, home: str, supervisor: str) -> bool:
    """Returns whether a supervisor has begun its work, which it tells at once. A new one gets a moment."""
    for _ in range(_LOOKS):
        said = await _read_status(box, home)
        if isinstance(said, dict) and said.get("generation") == supervisor:
            return True
        await asyncio.sleep(_LOOK_SECONDS)
    return False


def parse_status(said: object, generation: str, workdir: str) -> tuple[SessionStep, ...]:
    """Returns the steps from a status file, which any program in the box can write. What is not understood is
    `starting`.
    """
    known: dict[str, Mapping[str, Any]] = {}
    if isinstance(said, dict) and said.get("generation") == generation and isinstance(said.get("programs"), list):
        for each in said["programs"][: 2 * len(PROGRAMS)]:
            if isinstance(each, dict) and isinstance(each.get("name"), str):
                known[each["name"]] = each
    return tuple(_step(program, known.get(program.name, {}), workdir) for program in PROGRAMS)


def unknown_step(program: WorkstationProgram, state: StepState) -> SessionStep:
    return SessionStep(name=program.name, title=program.title, state=state)


def _step(program: WorkstationProgram, said: Mapping[str, Any], workdir: str) -> SessionStep:
    state = said.get("state")
    known = StepState(state) if isinstance(state, str) and state in _TOLD else StepState.STARTING
    path = program.path if known is StepState.RUNNING else None
    return SessionStep(
        name=program.name,
        title=program.title,
        state=known,
        since=_number(said.get("since")),
        restarts=_number(said.get("restarts")) or 0,
        ms=_number(said.get("ms")),
        detail=_text(said.get("detail")).replace("\n", " ")[:500],
        output="\n".join(_text(said.get("output")).splitlines()[-_LINES:]),
        path=None if path is None else path.format(workdir=workdir),
    )


def _number(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < _LARGEST else None


def _text(value: object) -> str:
    return visible(value[-_MOST_TEXT:].replace("\r", "")) if isinstance(value, str) else ""


async def _argv(box: Box) -> tuple[str, ...]:
    return (*guest_archive.boot_argv(await box.python(), _ENTRY, _EARLY), _mark())


@functools.cache
def _mark() -> str:
    archive = hashlib.sha256(guest_archive.pack([_ENTRY])).hexdigest()
    return mark_of(_KIND, "programs", [archive, [each.to_json("") for each in PROGRAMS]])
