"""Decides what to do about a thread's run, by what is known of it. `reconciler` carries the decisions out.

Dead is told from still thinking by signs of life alone, and signs are counted, not dated: their times are written by
clocks that jump, and by boxes that lie. What is measured is how long this server has heard nothing new, from when it
came up at the earliest.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.api.box.box import LimitHit, Liveness
from holdfast.api.run_info import CancelKind, RunStatus, Stage
from holdfast.threads.run_events import ThreadRuns


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Milliseconds of silence."""

    look: int = 7_000
    """A beat was missed: ask the box whether the runner is there."""
    soft: int = 30_000
    """A cancel that nobody heeds is carried out."""
    launch: int = 30_000
    """A launch that this server is not at is given up. At once, where no other server can be at it."""
    start: int = 60_000
    """A runner that was never heard of did not come to life."""
    hard: int = 600_000
    """Whatever the box says, or does not: the run is given up."""


class RunnerState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"
    """The guest saw its end, or knows of none like it."""
    STOPPED = "stopped"
    """It ended with its box, which was stopped or killed."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Look:
    """What a box and its provider say."""

    liveness: Liveness
    runner: RunnerState
    exit_code: int | None = None
    """Of the runner."""
    limits: tuple[LimitHit, ...] = ()
    """Those that the box ran into. Asked where the runner has ended."""

    @property
    def is_over(self) -> bool:
        """Nothing of the run is left in the box."""
        return self.liveness is Liveness.GONE or self.runner in (RunnerState.ENDED, RunnerState.STOPPED)


@dataclass(frozen=True, slots=True)
class Known:
    """What this server knows of a run beside its thread."""

    now: int
    """Of any clock that only goes forward, milliseconds, as all of these."""
    last_sign_at: int
    """When the last new sign was seen, or this server came up."""
    cancelled_at: int | None = None
    """When a request to cancel was first seen."""
    launching: bool = False
    """This server is at work on its launch."""
    look: Look | None = None
    overdue: bool = False
    """Its timeout is over, and the time that its runner had to end it."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to do now."""


@dataclass(frozen=True, slots=True)
class LookAtBox:
    """Ask the box, and decide again."""


@dataclass(frozen=True, slots=True)
class End:
    """Post the end of the run."""

    status: RunStatus
    code: str
    message: str
    hint: str | None = None
    """What to do next. `THREAD` in it stands for the thread's id."""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class LaunchWaiting:
    """Launch a run for the prompts that wait."""


Action = Nothing | LookAtBox | End | LaunchWaiting

NOTHING = Nothing()
_RESUME = "holdfast resume THREAD goes on from what is on the thread"
_NEW_BOX = "holdfast resume THREAD goes on from what is on the thread, in a new box"
_SAME_BOX = "holdfast resume THREAD starts its box again with its files, and goes on from what is on the thread"
_KILLED = 137


_FORKED = End(
    RunStatus.ORPHANED,
    "forked",
    "the thread was forked while this run was going on: it goes on on the thread that it was launched on",
    _RESUME,
)
_UNPROVEN = End(
    RunStatus.ORPHANED,
    "unproven",
    "it cannot be shown that this server launched it: its entries have no seal of the server",
    "go on with an agent of your choice: holdfast resume THREAD --agent NAME",
)


def decide(runs: ThreadRuns, known: Known, thresholds: Thresholds) -> Action:
    """The next thing to do."""
    run = runs.live
    if run is None:
        return LaunchWaiting() if is_due(runs) else NOTHING
    if known.launching:
        return NOTHING
    if not run.is_ours:
        return _FORKED if run.is_proven else _UNPROVEN
    silence = known.now - known.last_sign_at
    if not run.reached(Stage.RUNNER):
        if run.cancel is not None:
            return End(RunStatus.CANCELLED, "cancelled", "it was cancelled before its agent was started")
        if silence < thresholds.launch:
            return NOTHING
        return End(
            RunStatus.ORPHANED,
            "launch_lost",
            f"whoever launched it was gone before its agent was started: it came as far as {run.stage}",
            _RESUME,
        )
    unheeded = known.cancelled_at is not None and known.now - known.cancelled_at >= thresholds.soft
    if silence < thresholds.look and not unheeded and not known.overdue:
        return NOTHING
    look = known.look
    if look is None:
        return LookAtBox()
    if look.liveness is Liveness.GONE:
        return _lost(runs, "box_gone", f"box {run.box} is gone, and the agent with it", hint=_NEW_BOX)
    if look.is_over and (hit := limit_that_ended(look)) is not None:
        message = f"what ran in box {run.box} was ended by its {hit.name} limit: {hit.detail}"
        return _lost(runs, limit_code(hit), message, hint=limit_hint(hit), exit_code=look.exit_code)
    if look.runner is RunnerState.STOPPED:
        message = f"box {run.box} was stopped or killed while the agent was at work, and that ended with it"
        return _lost(runs, "box_stopped", message, hint=_SAME_BOX)
    if look.runner is RunnerState.ENDED:
        how = "" if look.exit_code is None else f" (exit code {look.exit_code})"
        return _lost(runs, "runner_lost", f"its runner ended without a word{how}", exit_code=look.exit_code)
    if known.overdue:
        return timed_out(run.options.get("timeout"))
    if unheeded:
        return End(RunStatus.CANCELLED, "cancelled", "it did not heed the request to cancel, and was ended")
    if not run.reached(Stage.AGENT) and silence >= thresholds.start:
        return _lost(runs, "runner_silent", f"its runner was not heard of for {silence // 1000} s after its start")
    if silence >= thresholds.hard:
        return _lost(runs, "silent", f"nothing was heard of it for {silence // 1000} s")
    return NOTHING


def _lost(runs: ThreadRuns, code: str, message: str, *, hint: str = _RESUME, exit_code: int | None = None) -> End:
    assert runs.latest is not None
    if runs.latest.cancel is not None:
        return End(RunStatus.CANCELLED, code, f"it was to be cancelled, and {message}", exit_code=exit_code)
    return End(RunStatus.ORPHANED, code, message, hint, exit_code)


def timed_out(seconds: object) -> End:
    return End(
        RunStatus.FAILED,
        "timed_out",
        f"the run took longer than its timeout of {seconds} s",
        "holdfast resume THREAD goes on, for as long again; --timeout gives it more, --timeout 0 no end",
    )


def limit_that_ended(look: Look) -> LimitHit | None:
    """The limit of its box that ended a runner. A box may run out of memory without harm to it: then it was killed."""
    for hit in look.limits:
        if hit.name == "disk" or look.runner is RunnerState.STOPPED or look.exit_code == _KILLED:
            return hit
    return None


def limit_code(hit: LimitHit) -> str:
    return f"{hit.name}_limit"


def limit_error(hit: LimitHit, thread: str) -> dict[str, str]:
    """The error of a run whose agent was killed while its runner lived, in a box that ran into this limit."""
    return {
        "code": limit_code(hit),
        "message": f"the agent was killed by the {hit.name} limit of its box: {hit.detail}",
        "hint": limit_hint(hit).replace("THREAD", thread),
    }


def limit_hint(hit: LimitHit) -> str:
    """How to go on: with the same limit it would end the same way."""
    return f"give it more: holdfast resume THREAD --{hit.name} SIZE; its files are kept"


def is_due(runs: ThreadRuns) -> bool:
    """Whether prompts wait that should be launched. After a cancel they wait for somebody to go on."""
    run = runs.latest
    if not runs.waiting or run is None or run.live or not run.is_proven:
        return False
    return not (run.status is RunStatus.CANCELLED and run.cancel is not CancelKind.INTERRUPT)
