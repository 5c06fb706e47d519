"""Decides what to do about the run of a thread. `reconciler` carries out the decisions.

Only signs of life tell a dead run from an agent that thinks. Signs are counted, not compared by their timestamps:
clocks may jump, and boxes may lie. Silence is the time since this server saw a new sign, or since it started.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.api.box.box import LimitHit, Liveness
from holdfast.api.run.info import CancelKind, RunStatus, Stage
from holdfast.threads.delegation import is_child_result
from holdfast.threads.run_events import Run, ThreadRuns


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Milliseconds of silence."""

    look: int = 7_000
    """A heartbeat is missing: ask the box about the runner."""
    soft: int = 30_000
    """The run did not react to a cancel: end it."""
    launch: int = 30_000
    """A launch that this server is not carrying out is lost. Zero if there can be no other server."""
    start: int = 60_000
    """A runner that has sent nothing since its start is lost."""
    hard: int = 600_000
    """The run is lost, whatever the box reports."""


class RunnerState(StrEnum):
    RUNNING = "running"
    ENDED = "ended"
    """The guest saw its end, or does not know the process."""
    STOPPED = "stopped"
    """It ended with its box, which was stopped or killed."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What a box and its provider report."""

    liveness: Liveness
    runner: RunnerState
    exit_code: int | None = None
    """Of the runner."""
    limits: tuple[LimitHit, ...] = ()
    """The limits that the box hit. Asked only if the runner has ended."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of the run is left in the box."""
        return self.liveness is Liveness.GONE or self.runner in (RunnerState.ENDED, RunnerState.STOPPED)


@dataclass(frozen=True, slots=True)
class Known:
    """What this server knows about a run beyond its thread. Times are milliseconds of a monotonic clock."""

    now: int
    last_sign_at: int
    """When this server saw the last new sign, or when it started."""
    cancelled_at: int | None = None
    """When a request to cancel was first seen."""
    launching: bool = False
    """This server is carrying out the launch."""
    look: ProbeResult | None = None
    overdue: bool = False
    """Its timeout and the runner's grace period are over."""
    parent_cancelled: bool = False
    """The thread is a task, and the run that delegated it was cancelled or its thread deleted."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """There is nothing to do now."""


@dataclass(frozen=True, slots=True)
class ProbeBox:
    """Ask the box, then decide again."""


@dataclass(frozen=True, slots=True)
class End:
    """Post the end of the run."""

    status: RunStatus
    code: str
    message: str
    hint: str | None = None
    """What to do next. `THREAD` in it stands for the thread's id."""
    exit_code: int | None = None
    again: bool = False
    """Its prompts wait for another run, because its agent was never started and nobody is there to resume it."""


@dataclass(frozen=True, slots=True)
class LaunchWaiting:
    """Launch a run for the waiting prompts."""


@dataclass(frozen=True, slots=True)
class CancelTask:
    """Cancel the run of a task, because its parent was cancelled."""


@dataclass(frozen=True, slots=True)
class ReportTask:
    """Tell the parent of a task that it has ended."""


Action = Nothing | ProbeBox | End | LaunchWaiting | CancelTask | ReportTask

NOTHING = Nothing()
_RESUME = "holdfast resume THREAD continues from the entries of the thread"
_NEW_BOX = "holdfast resume THREAD continues from the entries of the thread, in a new box"
_SAME_BOX = "holdfast resume THREAD starts its box again with its files, and continues from the entries of the thread"
_KILLED = 137
_AGAIN = {True: ": it is launched again", False: ""}


_FORKED = End(
    RunStatus.ORPHANED,
    "forked",
    "the thread was forked during this run, which continues on the original thread",
    _RESUME,
)
_UNPROVEN = End(
    RunStatus.ORPHANED,
    "unproven",
    "this server cannot prove that it launched the run: its entries are not signed by it",
    "name an agent to continue with: holdfast resume THREAD --agent NAME",
)


def decide(runs: ThreadRuns, known: Known, thresholds: Thresholds) -> Action:
    """Returns what to do next."""
    run = runs.live
    if run is None:
        if is_due(runs):
            return LaunchWaiting()
        return ReportTask() if is_open_task(runs) and runs.latest is not None else NOTHING
    if known.parent_cancelled and run.cancel is not CancelKind.CANCEL and run.is_ours:
        return CancelTask()
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
        again = should_repeat(run)
        return End(
            RunStatus.ORPHANED,
            "launch_lost",
            f"the server that launched it ended before the agent was started, at the stage {run.stage}{_AGAIN[again]}",
            None if again else _RESUME,
            again=again,
        )
    unheeded = known.cancelled_at is not None and known.now - known.cancelled_at >= thresholds.soft
    if silence < thresholds.look and not unheeded and not known.overdue:
        return NOTHING
    look = known.look
    if look is None:
        return ProbeBox()
    if look.liveness is Liveness.GONE:
        return _lost(runs, "box_gone", f"box {run.box} is gone, and the agent with it", hint=_NEW_BOX)
    if look.is_over and (hit := limit_that_ended(look)) is not None:
        message = f"what ran in box {run.box} was ended by its {hit.name} limit: {hit.detail}"
        return _lost(runs, limit_code(hit), message, hint=limit_hint(hit), exit_code=look.exit_code)
    if look.runner is RunnerState.STOPPED:
        message = f"box {run.box} was stopped or killed while the agent worked, which ended the agent too"
        return _lost(runs, "box_stopped", message, hint=_SAME_BOX)
    if look.runner is RunnerState.ENDED:
        how = "" if look.exit_code is None else f" (exit code {look.exit_code})"
        return _lost(runs, "runner_lost", f"its runner exited without reporting an end{how}", exit_code=look.exit_code)
    if known.overdue:
        return timed_out(run.options.get("timeout"))
    if unheeded:
        return End(RunStatus.CANCELLED, "cancelled", "it did not react to the request to cancel, and was ended")
    if not run.reached(Stage.AGENT) and silence >= thresholds.start:
        return _lost(runs, "runner_silent", f"its runner has sent nothing for {silence // 1000} s after its start")
    if silence >= thresholds.hard:
        return _lost(runs, "silent", f"it has sent nothing for {silence // 1000} s")
    return NOTHING


def should_repeat(run: Run) -> bool:
    """Returns whether a run that is lost before its agent has begun is launched again: once, if only results of tasks
    called for it.

    Who asks for a run sees that it was lost. If a task has woken its parent, nobody does.
    """
    if run.reached(Stage.AGENT) or run.repeats:
        return False
    return bool(run.prompts) and all(map(is_child_result, run.prompts))


def _lost(runs: ThreadRuns, code: str, message: str, *, hint: str = _RESUME, exit_code: int | None = None) -> End:
    assert runs.latest is not None
    if runs.latest.cancel is not None:
        return End(RunStatus.CANCELLED, code, f"it was being cancelled, and {message}", exit_code=exit_code)
    again = should_repeat(runs.latest)
    return End(RunStatus.ORPHANED, code, f"{message}{_AGAIN[again]}", None if again else hint, exit_code, again=again)


def timed_out(seconds: object) -> End:
    return End(
        RunStatus.FAILED,
        "timed_out",
        f"the run took longer than its timeout of {seconds} s",
        "continue with holdfast resume THREAD; --timeout sets a longer limit, --timeout 0 none",
    )


def limit_that_ended(look: ProbeResult) -> LimitHit | None:
    """Returns the limit that ended a runner. Running out of memory ended it only if it was killed."""
    for hit in look.limits:
        if hit.name == "disk" or look.runner is RunnerState.STOPPED or look.exit_code == _KILLED:
            return hit
    return None


def limit_code(hit: LimitHit) -> str:
    return f"{hit.name}_limit"


def limit_error(hit: LimitHit, thread: str) -> dict[str, str]:
    """Returns the error of a run whose agent, but not its runner, was killed by a limit."""
    return {
        "code": limit_code(hit),
        "message": f"the agent was killed by the {hit.name} limit of its box: {hit.detail}",
        "hint": limit_hint(hit).replace("THREAD", thread),
    }


def limit_hint(hit: LimitHit) -> str:
    """Returns how to continue with a higher limit."""
    return f"give it more: holdfast resume THREAD --{hit.name} SIZE; its files are kept"


def is_due(runs: ThreadRuns) -> bool:
    """Returns whether waiting prompts should be launched. After a cancel they wait until a user resumes the thread."""
    run = runs.latest
    if all(each.quiet for each in runs.waiting) or runs.session is not None:
        return False  # the queue of a session decides for itself
    if run is None:
        return is_open_task(runs)
    if run.live or not run.is_proven:
        return False
    return not (run.status is RunStatus.CANCELLED and run.cancel is not CancelKind.INTERRUPT)


def is_open_task(runs: ThreadRuns) -> bool:
    """Returns whether the thread is a task whose parent has not been told its end."""
    return runs.delegation is not None and runs.delegation.is_open
