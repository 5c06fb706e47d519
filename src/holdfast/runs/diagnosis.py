"""Diagnoses a run: how far it came, what is wrong, and what to do. Pure: decides from its thread and its box."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.api.box.box import LimitHit, Liveness
from holdfast.api.run.hints import hint_for_session
from holdfast.api.run.info import RunStatus, Stage
from holdfast.api.run.runs import Diagnosis, Finding
from holdfast.runs.blocked_egress import BlockedEgress, explain, remedy
from holdfast.runs.reconcile.rules import ProbeResult, RunnerState, Thresholds, limit_hint
from holdfast.threads.model_events import FAILOVER
from holdfast.threads.run_events import Run, ThreadRuns

_HELD: Final = re.compile(r"held open by process ([2-9]|[1-9]\d{1,8})\b")
"""In the notice of an agent that waits for the output of a command that has ended."""
_SOON: Final = "wait a moment, then: holdfast resume THREAD"


def diagnose(
    thread: str,
    runs: ThreadRuns,
    *,
    launching: bool,
    silence: int | None,
    look: ProbeResult | None,
    thresholds: Thresholds,
    limits: tuple[LimitHit, ...] = (),
    blocked: BlockedEgress | None = None,
    signals: Sequence[Mapping[str, Any]] = (),
) -> Diagnosis:
    """`silence` is in milliseconds. `look` is the report of the box, if it was asked. `limits` are those it has hit,
    and `blocked` is the latest sign that something keeps it from the network. `signals` are about its models: failovers
    and budgets.
    """
    run = runs.latest
    findings = [_finding("thread", True, f"thread {thread} has {runs.count} run{'' if runs.count == 1 else 's'}")]
    if run is None:
        launch = f'holdfast resume {thread} "…" --agent NAME'
        if runs.session is not None:
            launch = f'holdfast session prompt {thread} "…"'
        findings.append(_finding("claim", None, "no run was launched on it", launch))
        return Diagnosis(None, "idle", tuple(findings), "the thread has had no run", launch)
    findings += [
        _finding("claim", True, f"run {run.run} of {run.agent} with {run.model}, epoch {run.epoch}"),
        _box(run, look),
        *_limits(run, limits),
        _provision(run, launching),
        _runner(run, look),
        _agent(run),
        _first_event(run),
        *_notice(run),
        *_models(run, signals),
        *_egress(run, blocked, silence, thresholds),
        _heartbeat(run, silence, thresholds),
        _end(run),
    ]
    findings = [
        replace(each, next_step=None if each.next_step is None else each.next_step.replace("THREAD", thread))
        for each in findings
    ]
    if runs.session is not None:
        findings = [replace(each, next_step=each.next_step and hint_for_session(each.next_step)) for each in findings]
    failed = next((each for each in findings if each.ok is False), None)
    noticed = next((each for each in findings if each.stage in ("notice", "egress")), None)
    advised = failed or noticed
    return Diagnosis(
        run.run,
        run.status.value,
        tuple(findings),
        None if failed is None else f"{failed.stage}: {failed.detail}",
        None if advised is None else advised.next_step,
    )


def _limits(run: Run, limits: tuple[LimitHit, ...]) -> list[Finding]:
    """A limit is an error only if the run failed. A run may continue after one of its tools was killed."""
    ended_badly = run.status in (RunStatus.FAILED, RunStatus.ORPHANED)
    return [
        _finding(f"{hit.name} limit", False if ended_badly else None, hit.detail, limit_hint(hit)) for hit in limits
    ]


def _box(run: Run, look: ProbeResult | None) -> Finding:
    if run.box is None:
        return _not_there("box", run, "no box yet")
    detail = f"box {run.box} of {run.provider}, {run.box_how}, files {run.files}"
    if look is None:
        return _finding("box", True, detail)
    if look.liveness is Liveness.GONE:
        ok = None if not run.live else False
        return _finding("box", ok, f"{detail}; it is gone", "holdfast resume THREAD gives it a new box")
    if look.liveness is Liveness.UNKNOWN:
        return _finding("box", None, f"{detail}; it does not answer", f"holdfast box diagnose {run.box}")
    if look.runner is RunnerState.STOPPED:
        ok = None if not run.live else False
        return _finding("box", ok, f"{detail}; it was stopped or killed", "holdfast resume THREAD starts it again")
    return _finding("box", True, f"{detail}; it is there")


def _provision(run: Run, launching: bool) -> Finding:
    if run.reached(Stage.PROVISION):
        version = f" {run.version}" if run.version else ""
        return _finding("provision", True, f"{run.agent}{version}, session {run.session}")
    if launching:
        return _finding("provision", None, "this server is working on it")
    return _not_there("provision", run, "the agent was not brought into the box")


def _runner(run: Run, look: ProbeResult | None) -> Finding:
    if not run.reached(Stage.RUNNER):
        return _not_there("runner", run, "no runner was started")
    detail = f"process {run.process}"
    if look is None or not run.live:
        return _finding("runner", True, detail)
    if look.runner is RunnerState.ENDED:
        how = "" if look.exit_code is None else f" with exit code {look.exit_code}"
        return _finding("runner", False, f"{detail} ended{how} and posted no end", _SOON)
    if look.runner is RunnerState.STOPPED:
        return _finding("runner", False, f"{detail} ended with its box", _SOON)
    if look.runner is RunnerState.UNKNOWN:
        return _finding("runner", None, f"{detail}; the box does not say whether it runs")
    return _finding("runner", True, f"{detail} runs")


def _agent(run: Run) -> Finding:
    if run.reached(Stage.AGENT):
        return _finding("agent", True, "the runner has sent entries")
    return _not_there("agent", run, "the runner has sent nothing", f"holdfast box ping {run.box}" if run.box else None)


def _first_event(run: Run) -> Finding:
    if run.reached(Stage.EVENT):
        return _finding("first event", True, "the agent has said something")
    return _not_there(
        "first event", run, "the agent has said nothing", f"holdfast model test {run.model.partition('/')[0]}"
    )


def _notice(run: Run) -> list[Finding]:
    """The last notice of a live agent, such as what it waits for. It is not an error: the wait may be intended."""
    if not run.live or run.notice is None:
        return []
    held = _HELD.search(run.notice)
    step = None if held is None else f"to end it: holdfast box exec {run.box} -- kill {held[1]}"
    return [_finding("notice", None, run.notice, step)]


def _models(run: Run, signals: Sequence[Mapping[str, Any]]) -> list[Finding]:
    """The latest failover, and a budget that is used up. Errors only if the run failed for the budget."""
    found = []
    failover = next((each for each in reversed(signals) if each.get("type") == FAILOVER), None)
    if failover is not None:
        to = failover.get("to")
        then = f"going on with {to}" if to else "no other model was left"
        message = f" ({failover['message']})" if failover.get("message") else ""
        detail = f"{failover.get('model')} gave no answer: {failover.get('reason')}{message}; {then}"
        name = str(failover.get("model")).partition("/")[0]
        found.append(_finding("failover", None, detail, f"holdfast model test {name}"))
    reached = next((each for each in reversed(signals) if each.get("state") == "reached"), None)
    if reached is not None:
        unit = "dollars" if reached.get("unit") == "cost" else "tokens"
        spent = f"{reached.get('spent')} of {reached.get('limit')} {unit}"
        detail = f"the budget of this {reached.get('scope')} is used up: {spent}"
        ok = False if (run.error or {}).get("code") == "over_budget" else None
        found.append(_finding("budget", ok, detail, f"holdfast cost THREAD; {_more_budget(reached)}"))
    return found


def _more_budget(reached: Mapping[str, Any]) -> str:
    """Returns the command that changes the budget of this scope."""
    scope, subject = reached.get("scope"), reached.get("subject")
    if scope == "run":
        return "holdfast resume THREAD --budget DOLLARS"
    whose = {"day": "--day", "tree": f"{subject} --tree"}.get(str(scope), str(subject))
    amount = "--cost DOLLARS" if reached.get("unit") == "cost" else "--tokens N"
    return f"holdfast budget set {whose} {amount}, or holdfast budget remove {whose}; then holdfast resume THREAD"


def _egress(run: Run, blocked: BlockedEgress | None, silence: int | None, thresholds: Thresholds) -> list[Finding]:
    """An error if the run failed, or is silent because its runner cannot post. An agent may do without a host."""
    if blocked is None:
        return []
    ended_badly = run.status in (RunStatus.FAILED, RunStatus.ORPHANED)
    is_cut_off = blocked.by_runner and run.live and silence is not None and silence >= thresholds.soft
    ok = False if ended_badly or is_cut_off else None
    return [_finding("egress", ok, explain(blocked), remedy(blocked, run.box, run.provider))]


def _heartbeat(run: Run, silence: int | None, thresholds: Thresholds) -> Finding:
    if not run.live:
        return _finding("heartbeat", None, "the run has ended")
    if silence is None:
        return _finding("heartbeat", None, "this server has not seen it yet")
    detail = f"the last sign of life came {silence / 1000:.0f} s ago"
    if silence < thresholds.soft:
        return _finding("heartbeat", True, detail)
    left = max(0, thresholds.hard - silence) // 1000
    return _finding("heartbeat", False, detail, f"wait: it is given up in {left} s; or: holdfast cancel THREAD")


def _end(run: Run) -> Finding:
    if run.live:
        asked = "" if run.cancel is None else "; it was asked to end"
        return _finding("end", None, f"it is running{asked}")
    detail = f"{run.status.value}, reported by its {run.ended_by}"
    if run.error:
        detail += f": {run.error.get('message', run.error.get('code', ''))}"
    ok = run.status in (RunStatus.COMPLETED, RunStatus.CANCELLED)
    hint = (run.error or {}).get("hint") or "holdfast resume THREAD"
    return _finding("end", ok, detail, None if ok else str(hint))


def _not_there(stage: str, run: Run, detail: str, next_step: str | None = None) -> Finding:
    """A stage that was not reached. It is an error only if the run failed."""
    ended_badly = run.status in (RunStatus.FAILED, RunStatus.ORPHANED)
    return _finding(stage, False if ended_badly else None, detail, next_step if not ended_badly else _hint(run))


def _hint(run: Run) -> str:
    return str((run.error or {}).get("hint") or "holdfast resume THREAD")


def _finding(stage: str, ok: bool | None, detail: str, next_step: str | None = None) -> Finding:
    return Finding(stage, ok, detail, next_step)
