"""The start of a session in its box: context files, and the programs of its workstation. And what became of them.

A boot can be repeated: it starts what does not run, and leaves the rest alone. So there is nothing to remember about
it. A server that does not know whether a session was booted in its box boots it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.records import BoxState
from holdfast.api.errors import HoldfastError, NotFound
from holdfast.api.errors.boxes import BoxError
from holdfast.api.errors.runs import InvalidRun
from holdfast.api.run.repositories import Source
from holdfast.api.session.sessions import (
    MOST_CONTEXT,
    ContextFile,
    SessionDiagnosis,
    SessionState,
    SessionStep,
    StepState,
)
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.boxes.workspace_copy import home_of
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.launch.context_files import REPOSITORY, context_of, write_context
from holdfast.runs.launch.plan import Options, session_options
from holdfast.sessions.programs import PROGRAMS
from holdfast.sessions.session_log import SessionLog, session_of
from holdfast.sessions.workstation import SETTLED, is_supervised, read_workstation, start_workstation, unknown_step
from holdfast.threads.rows import ThreadRow
from holdfast.threads.session_events import Session, booted, booted_id
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

_CHECK_MS: Final = 30_000
"""How often a session is asked whether the supervisor of its workstation runs."""
_BOOT_SECONDS: Final = 120.0
_WATCH_SECONDS: Final = 180.0
_REMEMBERED: Final = 1_000
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
_TITLES: Final = {"box": "Box", "files": "Files", "context": "Context files"}


@dataclass(slots=True)
class _Boot:
    """A boot of this server."""

    version: int
    """The change of state that it followed."""
    box: str
    began: int
    checked: int
    """In ticks."""
    steps: list[SessionStep] = field(default_factory=list)


class SessionBoots:
    """Boots sessions, and tells what became of it. `tasks` owns what watches the programs start."""

    def __init__(self, sessions: SessionLog, boxes: Boxes, tasks: BackgroundTasks, ticks: Callable[[], int]) -> None:
        self._sessions = sessions
        self._boxes = boxes
        self._tasks = tasks
        self._ticks = ticks
        self._boots: dict[str, _Boot] = {}
        self._made: dict[str, int] = {}
        """By session: how long its box took, until its boot reports it."""
        self._homes: OrderedDict[str, str] = OrderedDict()

    def note_box(self, id: str, ms: int) -> None:
        """Remember how long the box of a session took."""
        self._made[id] = ms

    def forget(self, id: str) -> None:
        """Called when a session sleeps or has ended. What its last start came to is on its thread."""
        self._boots.pop(id, None)
        self._made.pop(id, None)

    def is_booted(self, id: str, session: Session, box: BoxRow | None) -> bool:
        """Returns whether there is nothing to start in the box of a session, as far as this server knows."""
        if not is_bootable(session) or box is None or box.state is not BoxState.RUNNING:
            return True
        boot = self._boots.get(id)
        if boot is None or boot.box != box.id or boot.version != session.version:
            return False
        return not has_workstation(session) or self._ticks() - boot.checked < _CHECK_MS

    async def boot(self, id: str, box: BoxRow) -> None:
        """Start what does not run in the box of a session. What fails is reported, and tried again later."""
        row = await self._sessions.find(id)
        session, last = session_of(row), self._boots.get(id)
        if last is not None and last.box == box.id and last.version == session.version:
            last.checked = self._ticks()
            if await self._is_supervised(box):
                return
            log.warning("the supervisor of session %s has ended, and is started again", id)
        options = session_options(row.runs)
        boot = self._boots[id] = _Boot(session.version, box.id, self._ticks(), self._ticks())
        ms = self._made.pop(id, None)
        boot.steps.append(_done("box", ms))
        if (about := describe_files(row)) is not None:
            boot.steps.append(replace(_done("files", None), detail=about))
        await self._start(box, options, row, boot)
        if session.boot.get("version") != session.version:
            self._tasks.start(self._watch(id, boot, options.workstation), name=f"boot of session {id}")

    async def _is_supervised(self, box: BoxRow) -> bool:
        try:
            # Not by `open`, which would wake it.
            async with time_limit(_BOOT_SECONDS), await self._boxes.provider(box.provider).attach(box.id) as opened:
                return await is_supervised(opened)
        except (BoxError, TimeoutError):
            return True  # it is stopping, or cannot be reached: the next look tells

    async def _start(self, box: BoxRow, options: Options, row: ThreadRow, boot: _Boot) -> None:
        with self._boxes.using(box.id):
            began = self._ticks()
            files = context_of(options, source_of(row))
            try:
                async with time_limit(_BOOT_SECONDS), await self._boxes.open(box.id) as opened:
                    if files:
                        try:
                            await write_context(opened, files)
                            boot.steps.append(_done("context", self._ticks() - began))
                        except BoxError as error:
                            boot.steps.append(_failed("context", error.message))
                    if options.workstation:
                        await start_workstation(opened)
            except (BoxError, TimeoutError) as error:
                log.warning("the workstation of session %s cannot be started: %s", row.id, error)
                boot.steps.append(_failed("workstation", str(error) or "it took too long"))

    async def _watch(self, id: str, boot: _Boot, workstation: bool) -> None:
        """Wait until all programs have started, or cannot, and write that on the thread."""
        programs: Sequence[SessionStep] = ()
        pause = _FIRST_PAUSE
        try:
            async with time_limit(_WATCH_SECONDS), await self._boxes.open(boot.box) as box:
                with self._boxes.using(boot.box):
                    while workstation:
                        programs = await read_workstation(box, await self._home(box))
                        if all(each.state in SETTLED for each in programs):
                            break
                        await asyncio.sleep(pause)
                        pause = min(pause * 1.5, _LONGEST_PAUSE)
        except (BoxError, TimeoutError) as error:
            log.info("the boot of session %s is not followed any more: %s", id, error)
        steps = [(each.name, each.state.value, each.ms) for each in (*boot.steps, *programs)]
        entry = booted(boot.version, boot.box, self._ticks() - boot.began, steps)
        try:
            await self._sessions.runs.append(id, self._sessions.runs.entry(entry, id=booted_id(boot.version)))
        except NotFound:
            log.info("session %s was deleted while it started", id)
        except HoldfastError as error:
            log.warning("the boot of session %s cannot be written: %s", id, error)

    async def _home(self, box: Box) -> str:
        """The home folder of a box. Asking for it takes longer than all the rest, and it stays the same."""
        if (home := self._homes.get(box.id)) is None:
            home = self._homes[box.id] = await home_of(box)
            while len(self._homes) > _REMEMBERED:
                self._homes.popitem(last=False)
        return home

    # --- telling ---

    async def diagnose(self, row: ThreadRow, box: BoxRow | None) -> SessionDiagnosis:
        session = session_of(row)
        boot = self._boots.get(row.id)
        is_current = session.boot.get("version") == session.version
        if boot is not None and boot.version == session.version:
            steps = list(boot.steps)
        else:
            steps = [_kept(*each) for each in session.boot.get("steps", ()) if each[0] in _TITLES]
            steps = [
                replace(each, detail=describe_files(row) or "") if each.name == "files" else each for each in steps
            ]
        if not any(each.name == "box" for each in steps):
            steps.insert(0, SessionStep(name="box", title=_TITLES["box"], state=_BOX[session.state]))
        elif session.state is not SessionState.RUNNING:
            steps = [replace(each, state=_BOX[session.state]) if each.name == "box" else each for each in steps]
        return SessionDiagnosis(
            id=row.id,
            state=session.state,
            box=None if box is None else box.id,
            workstation=has_workstation(session),
            ms=session.boot["ms"] if is_current else None,
            steps=(*steps, *await self.programs(session, box)),
        )

    async def programs(self, session: Session, box: BoxRow | None) -> tuple[SessionStep, ...]:
        """Returns what became of the programs of a session's workstation. Wakes no box."""
        if not has_workstation(session):
            return ()
        if box is not None and box.state is BoxState.RUNNING:
            try:
                async with time_limit(_BOOT_SECONDS), await self._boxes.provider(box.provider).attach(box.id) as opened:
                    return await read_workstation(opened, await self._home(opened))
            except (BoxError, TimeoutError) as error:
                log.info("the programs of box %s are not known now: %s", box.id, error)
        return tuple(unknown_step(each, StepState.STOPPED) for each in PROGRAMS)


# --- decisions ---


def has_workstation(session: Session) -> bool:
    return session.options.get("workstation") is True


def is_bootable(session: Session) -> bool:
    """Returns whether there is anything to start in the box of a session."""
    return has_workstation(session) or bool(session.options.get("context"))


def check_context(files: Sequence[ContextFile]) -> None:
    """Raises `InvalidRun` if these cannot be the context files of a session."""
    names = [each.name for each in files]
    if len(set(names)) < len(names) or REPOSITORY in names:
        raise InvalidRun(f"context files need names of their own, other than {REPOSITORY}")
    if (size := sum(len(each.text) for each in files)) > MOST_CONTEXT:
        raise InvalidRun(
            f"the context files have {size} characters, more than {MOST_CONTEXT}", hint="put them into the workspace"
        )


def source_of(row: ThreadRow) -> Source | None:
    if row.runs.source is None:
        return None
    try:
        return Source.from_json(row.runs.source)
    except (LookupError, TypeError, ValueError):
        return None


def describe_files(row: ThreadRow) -> str | None:
    source = source_of(row)
    if source is None:
        return None
    at = "" if source.commit is None else f" at {source.commit[:12]}"
    return f"{source.repository or 'a repository'}{'' if source.ref is None else f', {source.ref}'}{at}"


_BOX: Final = {
    SessionState.INITIALIZING: StepState.STARTING,
    SessionState.RUNNING: StepState.DONE,
    SessionState.HIBERNATING: StepState.STOPPED,
    SessionState.HIBERNATED: StepState.STOPPED,
    SessionState.RESTORING: StepState.STARTING,
    SessionState.TERMINATED: StepState.STOPPED,
    SessionState.ERROR: StepState.FAILED,
}


def _done(name: str, ms: int | None) -> SessionStep:
    return SessionStep(name=name, title=_TITLES[name], state=StepState.DONE, ms=ms)


def _failed(name: str, why: str) -> SessionStep:
    return SessionStep(name=name, title=_TITLES.get(name, name.capitalize()), state=StepState.FAILED, detail=why)


def _kept(name: str, state: str, ms: Any) -> SessionStep:
    known = StepState(state) if state in frozenset(StepState) else StepState.FAILED
    return SessionStep(name=name, title=_TITLES[name], state=known, ms=ms if type(ms) is int else None)
