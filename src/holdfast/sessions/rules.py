"""Decides what to do about a session, from its thread and from what is known beside it. `driver` carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from holdfast.api.box.records import BoxState
from holdfast.api.run.info import CancelKind, Stage
from holdfast.api.session.sessions import SessionState
from holdfast.sessions.queue import Later, Next, interrupts, next_prompts
from holdfast.threads.run_events import Run, ThreadRuns
from holdfast.threads.session_events import Session

_ASLEEP: Final = frozenset({BoxState.HIBERNATED, BoxState.STOPPED})


@dataclass(frozen=True, slots=True)
class Patience:
    """Milliseconds after which the watchdogs look after a session."""

    runner: int = 300_000
    """A prompt is worked on, and its run has given no sign of life."""
    drain: int = 60_000
    """Prompts wait although nothing is in their way."""
    ready: int = 120_000
    """A run has not reached its agent."""


@dataclass(frozen=True, slots=True)
class Known:
    """What this server knows about a session beyond its thread."""

    now: int
    """UTC milliseconds."""
    working: bool = False
    """This server is carrying out a step of it."""
    launching: bool = False
    """This server is launching a run of it."""
    box: BoxState | None = None
    """The state of its box, if it has one."""
    room: bool = True
    """Whether one more session may have a box that runs."""
    booted: bool = True
    """Whether all that belongs to it was started in its box, as far as this server knows."""
    silent_ms: int | None = None
    """How long its run has given no sign of life."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to do now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again after this many milliseconds."""

    ms: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Make its box, or wake or restore it, and then let it run."""


@dataclass(frozen=True, slots=True)
class Boot:
    """Start in its box what belongs to it and does not run."""


@dataclass(frozen=True, slots=True)
class Hibernate:
    """Save its files, and stop its box."""


@dataclass(frozen=True, slots=True)
class Release:
    """Let go of everything that a terminated session has, but for its files."""


@dataclass(frozen=True, slots=True)
class Move:
    """Change its state, because its box or its queue asks for it."""

    to: SessionState
    why: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a run for these prompts, or for what else waits on the thread."""

    prompts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End the current run, for a prompt that steers."""


@dataclass(frozen=True, slots=True)
class EndRun:
    """Cancel a run that has no session any more. Its prompts end with it."""


@dataclass(frozen=True, slots=True)
class CheckRun:
    """Ask whether the run is alive. If it is lost, its prompts wait again."""


@dataclass(frozen=True, slots=True)
class ReportSlow:
    """Write on the thread, once, that the run takes long to reach its agent."""


Action = (
    Nothing | Wait | Prepare | Boot | Hibernate | Release | Move | Launch | Interrupt | EndRun | CheckRun | ReportSlow
)

NOTHING: Final = Nothing()
PATIENCE: Final = Patience()


def decide(runs: ThreadRuns, known: Known) -> Action:
    """Returns what to do next about a session."""
    session = runs.session
    if session is None or known.working:
        return NOTHING
    match session.state:
        case SessionState.INITIALIZING | SessionState.RESTORING:
            return Prepare()
        case SessionState.HIBERNATING:
            return Hibernate()
        case SessionState.TERMINATED:
            return NOTHING if session.released else Release()
        case SessionState.ERROR:
            return NOTHING if runs.live is None or runs.live.cancel is CancelKind.CANCEL else EndRun()
        case SessionState.HIBERNATED:
            if is_wanted(runs):
                # A prompt wakes it. Without room, it waits until another session sleeps.
                return Move(SessionState.RESTORING, "a prompt waits") if known.room else NOTHING
            if known.box is BoxState.RUNNING:
                return Move(SessionState.RESTORING, "its box was woken")
            return NOTHING
        case SessionState.RUNNING:
            return _decide_running(runs, known)


def _decide_running(runs: ThreadRuns, known: Known) -> Action:
    session = runs.session
    assert session is not None
    run = runs.live
    if not known.booted:
        return Boot()
    if known.launching:
        return NOTHING if run is None or not _is_interrupted(run, session) else Interrupt()
    if run is not None:
        return Interrupt() if _is_interrupted(run, session) else NOTHING
    match next_prompts(session.queued, known.now):
        case Next(prompts):
            return Launch(prompts)
        case Later(ms):
            return Wait(ms)
    if is_wanted(runs):
        return Launch(())
    if known.box in _ASLEEP:
        return Move(SessionState.HIBERNATING, "its box fell asleep")
    return NOTHING


def _is_interrupted(run: Run, session: Session) -> bool:
    return run.cancel is None and interrupts(session.queued, run.channel)


def is_wanted(runs: ThreadRuns) -> bool:
    """Returns whether something waits for a run of the session."""
    return bool(runs.session and runs.session.queued) or not all(each.quiet for each in runs.waiting)


def watch(runs: ThreadRuns, known: Known, patience: Patience = PATIENCE) -> Action:
    """Returns what a watchdog does about a session that `decide` leaves alone.

    A run is decided dead by its thread and its box (`holdfast.runs.reconcile`), usually within seconds. These are for
    what that misses.
    """
    session, run = runs.session, runs.live
    if session is None or known.working or session.state is not SessionState.RUNNING:
        return NOTHING
    if run is None:
        oldest = min((each.created_at for each in session.queued), default=known.now)
        return CheckRun() if known.now - oldest > patience.drain and not known.launching else NOTHING
    if session.processing and known.silent_ms is not None and known.silent_ms >= patience.runner:
        return CheckRun()
    if not run.reached(Stage.AGENT) and known.now - run.started_at > patience.ready:
        return ReportSlow()
    return NOTHING
