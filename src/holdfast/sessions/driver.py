"""Drives sessions: carries out what `rules` decides. A request only writes what is wanted; this makes it so.

Steps that take long (making a box, hibernating, releasing) are tasks, one for each session. If the server dies, the
next one finds the state on the thread and begins the step again: each can be repeated.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any, Final
from weakref import WeakValueDictionary

from holdfast.api.box.records import BoxState
from holdfast.api.errors import DiskFull, HoldfastError, NotFound, Refused, Unavailable
from holdfast.api.errors.boxes import BoxConflict, BoxError, BoxGone, BoxNotFound, BoxUnreachable
from holdfast.api.errors.sessions import SessionConflict
from holdfast.api.run.info import CancelKind, RunStatus
from holdfast.api.session.sessions import SessionState
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.boxes import Boxes
from holdfast.runs.background import BackgroundTasks
from holdfast.runs.launch.plan import key_of
from holdfast.runs.service import Runs
from holdfast.sessions.boot import SessionBoots
from holdfast.sessions.child_ends import end_text, last_words
from holdfast.sessions.rules import (
    Boot,
    CheckRun,
    EndRun,
    Hibernate,
    Interrupt,
    Known,
    Launch,
    Move,
    Nothing,
    Prepare,
    Release,
    ReportSlow,
    Wait,
    decide,
    is_wanted,
    watch,
)
from holdfast.sessions.session_log import SessionLog, session_of
from holdfast.sessions.work_state import WorkStates
from holdfast.threads.projection import Projection
from holdfast.threads.rows import RowFilter, ThreadRow
from holdfast.threads.session_events import (
    AWAKE,
    Session,
    child_end_chat_id,
    child_ended,
    child_terminated,
    child_terminated_id,
    released,
    released_id,
    slow,
    slow_id,
)
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

_STEPS: Final = 16
_STEP_SECONDS: Final = 1800.0
_MOST_FAILURES: Final = 5
"""How often a step is tried while its box cannot be reached."""
_FIRST_PAUSE: Final = 2_000
_LONGEST_PAUSE: Final = 300_000
_MOST_CHILDREN: Final = 1_000
_ASLEEP: Final = frozenset({BoxState.HIBERNATED, BoxState.STOPPED})
_EARLY: Final = frozenset({SessionState.INITIALIZING, SessionState.RESTORING})


class NotYet(Exception):
    """A step has to wait for something else, and is tried again."""


class SessionDriver:
    """Owns nothing but its steps, which `tasks` owns. Keeps no state that the thread does not have."""

    def __init__(
        self,
        sessions: SessionLog,
        runs: Runs,
        boxes: Boxes,
        projection: Projection,
        tasks: BackgroundTasks,
        boots: SessionBoots,
        *,
        most: int,
        on_due: Callable[[str], None],
        on_end: Callable[[str, Session], Awaitable[None]],
        stop_runner: Callable[[str], Awaitable[object]],
        ticks: Callable[[], int],
    ) -> None:
        """`most` sessions may have a box that runs. `on_due` is called with a session to drive soon, `on_end` with one
        that has ended, at least once. `stop_runner` ends
        what stays in the box of a session between its runs. `ticks` returns the milliseconds of a monotonic clock.
        """
        self._sessions = sessions
        self._log = sessions.runs
        self._runs = runs
        self._boxes = boxes
        self._projection = projection
        self._tasks = tasks
        self._work = WorkStates(sessions, boxes, runs.checkpoints, tasks)
        self._boots = boots
        self._most = most
        self._on_due = on_due
        self._on_end = on_end
        self._stop_runner = stop_runner
        self._ticks = ticks
        self._steps: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, tuple[int, int]] = {}
        """By session: how often its step has failed, and the tick before which it is not tried again."""
        self._slow: dict[str, str] = {}
        """By session: the run that was reported to be slow."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def lock(self, id: str) -> asyncio.Lock:
        """Whoever holds it may change the state of the session. Steps do not hold it."""
        return self._locks.setdefault(id, asyncio.Lock())

    def step_of(self, id: str) -> asyncio.Task[None] | None:
        return self._steps.get(id)

    def forget(self, id: str) -> None:
        """Called when the thread of a session was deleted."""
        self._failures.pop(id, None)
        self._slow.pop(id, None)
        self._boots.forget(id)
        if (step := self._steps.get(id)) is not None:
            step.cancel()
        if (timer := self._timers.pop(id, None)) is not None:
            timer.cancel()

    async def settle(self, id: str) -> ThreadRow:
        """Drive a session until there is nothing to do but to wait for its agent. Returns its row."""
        while True:
            row = await self.drive(id)
            step = self._steps.get(id)
            if step is None:
                return row
            await asyncio.wait((step,))

    async def drive(self, id: str) -> ThreadRow:
        """Do what there is to do about a session now, and start what takes longer. Returns its row."""
        async with self.lock(id):
            for _ in range(_STEPS):
                row = await self._sessions.find(id)
                if not await self._act(id, row):
                    return row
            return await self._sessions.find(id)

    async def room(self) -> bool:
        """Returns whether one more session may have a box that runs."""
        wanted = RowFilter(session=tuple(AWAKE), archived=None, limit=self._most)
        return len(await self._projection.rows(wanted)) < self._most

    async def woken(self, ids: Iterable[str]) -> list[str]:
        """Returns those of these sessions whose box runs, by one look at all boxes."""
        by_key = {key_of(id): id for id in ids}
        if not by_key:
            return []
        rows = await self._boxes.rows.live(self._boxes.tenant, self._boxes.node)
        return [by_key[row.key] for row in rows if row.key in by_key and row.state is BoxState.RUNNING]

    async def box_of(self, id: str) -> BoxRow | None:
        return await self._boxes.of_key(key_of(id))

    # --- deciding ---

    async def _act(self, id: str, row: ThreadRow) -> bool:
        """Take one action. Returns whether the session should be looked at again. The caller holds the lock."""
        known = await self._known(id, row)
        action = decide(row.runs, known)
        run = row.runs.live
        if isinstance(action, Nothing):
            self._look_at_work(id, row, known)
            action = watch(row.runs, known)
        match action:
            case Wait(ms):
                self._look_again(id, ms)
            case Prepare():
                self._start(id, self._prepare)
            case Boot():
                self._start(id, self._boot)
            case Hibernate():
                self._start(id, self._hibernate)
            case Release():
                self._start(id, self._release)
            case Move(to, why):
                with suppress(SessionConflict):  # another process was faster
                    await self._sessions.move(id, to, why=why)
                return True
            case Launch(prompts):
                return await self._runs.launch_queued(id, prompts) is not None
            case Interrupt():
                assert run is not None
                await self._runs.cancellation.request(id, run, CancelKind.INTERRUPT, None)
            case EndRun():
                assert run is not None
                await self._runs.cancellation.request(id, run, CancelKind.CANCEL, None)
            case CheckRun():
                await self._runs.reconcile(id, force=True)
            case ReportSlow():
                assert run is not None
                if self._slow.get(id) != run.run:
                    waited = known.now - run.started_at
                    await self._log.append(id, self._log.entry(slow(run.run, run.stage, waited), id=slow_id(run.run)))
                    self._slow[id] = run.run
        return False

    def _look_at_work(self, id: str, row: ThreadRow, known: Known) -> None:
        session, run = session_of(row), row.runs.latest
        if session.state is not SessionState.RUNNING or known.box is not BoxState.RUNNING:
            return
        if run is None or run.live or not run.is_ours or run.box is None or run.status is RunStatus.ORPHANED:
            return
        if session.work.get("run") != run.run:
            self._work.look(id, run.run, run.box)

    async def _known(self, id: str, row: ThreadRow) -> Known:
        session, run = session_of(row), row.runs.live
        failures = self._failures.get(id)
        box = await self.box_of(id) if session.state in (SessionState.RUNNING, SessionState.HIBERNATED) else None
        asleep = session.state is SessionState.HIBERNATED
        return Known(
            now=self._log.clock(),
            working=id in self._steps or (failures is not None and self._ticks() < failures[1]),
            launching=self._runs.launches.is_launching(id),
            box=None if box is None else box.state,
            booted=session.state is not SessionState.RUNNING or self._boots.is_booted(id, session, box),
            room=not (asleep and is_wanted(row.runs)) or await self.room(),
            silent_ms=None if run is None else self._runs.silence(id, run.run),
        )

    def _look_again(self, id: str, ms: int) -> None:
        if (timer := self._timers.pop(id, None)) is not None:
            timer.cancel()

        def look() -> None:
            self._timers.pop(id, None)
            self._on_due(id)

        self._timers[id] = asyncio.get_running_loop().call_later(ms / 1000, look)

    # --- steps ---

    def _start(self, id: str, step: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        async def work() -> None:
            try:
                async with time_limit(_STEP_SECONDS):
                    await step(id)
                self._failures.pop(id, None)
            except NotFound:
                log.info("session %s was deleted", id)
            except SessionConflict as changed:  # it was terminated meanwhile, or another process was faster
                log.info("%s", changed)
            except (NotYet, Refused, BoxError) as error:
                self._failed(id)
                log.warning("session %s: %s; it is tried again", id, error)
            except Exception:
                self._failed(id)
                log.exception("a step of session %s failed; it is tried again", id)

        def end(task: asyncio.Task[None]) -> None:
            self._steps.pop(id, None)
            self._on_due(id)

        self._steps[id] = task = self._tasks.start(work(), name=f"session {id}")
        task.add_done_callback(end)

    def _failed(self, id: str) -> int:
        """Count a failed attempt, and pause before the next one. Returns how many there were."""
        count = self._failures.get(id, (0, 0))[0] + 1
        pause = min(_FIRST_PAUSE << (count - 1), _LONGEST_PAUSE)
        self._failures[id] = (count, self._ticks() + pause)
        return count

    def _gives_up(self, id: str) -> bool:
        return self._failures.get(id, (0, 0))[0] + 1 >= _MOST_FAILURES

    async def _prepare(self, id: str) -> None:
        """Give the session its box. A provider that cannot be reached now is asked again, a few times."""
        began = self._ticks()
        try:
            box = await self._runs.prepare_box(id)
        except BoxUnreachable as error:
            if not self._gives_up(id):
                raise
            await self._fail(id, error)
            return
        except (Unavailable, DiskFull):
            raise  # the store is at fault, and it is tried again
        except HoldfastError as error:
            await self._fail(id, error)
            return
        except Exception as error:
            log.exception("the box of session %s cannot be prepared", id)
            await self._fail(id, error)
            return
        ms = max(0, self._ticks() - began)
        self._boots.note_box(id, ms)
        await self._sessions.move(id, SessionState.RUNNING, only_from=_EARLY, box=box, ms=ms)

    async def _fail(self, id: str, error: Exception) -> None:
        """The session has no box, and gets none."""
        await self._tell_end(await self._sessions.move(id, SessionState.ERROR, only_from=_EARLY, error=_error(error)))

    async def _boot(self, id: str) -> None:
        box = await self.box_of(id)
        if box is not None:
            await self._boots.boot(id, box)

    async def _hibernate(self, id: str) -> None:
        began = self._ticks()
        box = await self.box_of(id)
        if box is None:
            await self._end(id, "its box is gone")
            return
        await self._runs.checkpoints.settle(id)  # of the last run, which still uses the box
        await self._work.settle(id)
        await self._stop_runner(id)
        try:
            if box.state not in _ASLEEP:
                try:
                    await self._boxes.hibernate(box.id)
                except BoxConflict:
                    # Somebody has a terminal open, or a program runs in it: this was asked for all the same.
                    await self._boxes.stop(box.id)
        except (BoxGone, BoxNotFound):
            await self._end(id, "its box is gone")
            return
        except BoxError as error:
            if not self._gives_up(id):
                raise
            await self._end(id, f"its files cannot be saved: {error}")
            return
        ms = max(0, self._ticks() - began)
        self._boots.forget(id)
        await self._sessions.move(id, SessionState.HIBERNATED, only_from=(SessionState.HIBERNATING,), box=box.id, ms=ms)

    async def _end(self, id: str, why: str) -> None:
        await self._sessions.move(id, SessionState.TERMINATED, only_from=(SessionState.HIBERNATING,), why=why)

    async def _release(self, id: str) -> None:
        """End what a terminated session has started, and stop its box. Its files stay."""
        self._boots.forget(id)
        row = await self._sessions.find(id)
        if (run := row.runs.live) is not None:
            await self._runs.cancellation.request(id, run, CancelKind.CANCEL, None)
        tasks = await self._runs.delegations.cancel_below(id)
        children = await self.children_of(id)
        for child in children:
            with suppress(NotFound):  # deleted meanwhile
                await self.terminate(child.id, why=f"session {id}, to which it belongs, was terminated")
        await self._runs.launches.wait(id)
        await self._runs.checkpoints.settle(id)
        box = await self.box_of(id)
        if box is not None:
            await self._switch_off(box)
        row = await self._runs.reconcile(id, force=True)
        if row.runs.live is not None:
            raise NotYet(f"run {row.runs.live.run} has not ended yet")
        await self._tell_end(row)
        entry = released(children=len(children), tasks=tasks, box=None if box is None else box.id)
        await self._log.append(id, self._log.entry(entry, id=released_id()))

    async def _tell_end(self, row: ThreadRow) -> None:
        """Note that a session has ended, and tell the one that it belongs to, with its agent. Repeating it has no
        effect.
        """
        session = session_of(row)
        await self._on_end(row.id, session)
        if session.parent is None:
            return
        told = self._log.entry(child_terminated(row.id, session.why or ""), id=child_terminated_id(row.id))
        with suppress(NotFound):
            above = session_of(await self._sessions.find(session.parent))
            await self._log.append(session.parent, told)
            # The agent of the parent knows of an end that it has asked for.
            if not above.is_over and session.by != session.parent:
                text = end_text(row, await last_words(self._log, row))
                chat = self._log.entry(child_ended(row.id, text), id=child_end_chat_id(row.id), author=row.id)
                await self._log.append(session.parent, chat)
                self._on_due(session.parent)

    async def _switch_off(self, box: BoxRow) -> None:
        with suppress(BoxGone, BoxNotFound):
            if Capability.STOP in self._boxes.provider(box.provider).capabilities:
                await self._boxes.stop(box.id)
            else:
                await self._boxes.delete(box.id)

    # --- terminating ---

    async def children_of(self, id: str) -> list[ThreadRow]:
        """Returns the sessions that belong to a session."""
        wanted = RowFilter(parent=id, session=tuple(SessionState), archived=None, limit=_MOST_CHILDREN)
        return [row for row in await self._projection.rows(wanted) if session_of(row).parent == id]

    async def terminate(self, id: str, *, why: str | None = None, by: str | None = None) -> ThreadRow:
        """Terminate a session, whatever its state. What it has started is ended next. Returns its row."""
        async with self.lock(id):
            for _ in range(_STEPS):
                state = session_of(await self._sessions.find(id)).state
                if state is SessionState.TERMINATED:
                    break
                with suppress(SessionConflict):  # its step, or another process, was faster
                    if state in _EARLY:
                        await self._give_up_step(id)
                        error = {"code": "terminated", "message": "it was terminated before it was ready"}
                        await self._sessions.move(id, SessionState.ERROR, only_from=_EARLY, error=error)
                    await self._sessions.move(id, SessionState.TERMINATED, why=why, by=by)
        self._failures.pop(id, None)
        return await self.drive(id)

    async def _give_up_step(self, id: str) -> None:
        if (step := self._steps.get(id)) is not None:
            step.cancel()
            await asyncio.wait((step,))


def _error(error: Exception) -> dict[str, str]:
    code, message = getattr(error, "code", None), getattr(error, "message", None)
    hint = getattr(error, "hint", None)
    told = {"code": code or "box_failed", "message": message or str(error) or type(error).__name__}
    return told if hint is None else {**told, "hint": hint}
