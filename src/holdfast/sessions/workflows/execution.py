"""An execution of a workflow: what its thread says about it, and what to do next. Pure.

All its entries have the server's seal, and ids that follow from what they say: whoever writes one twice writes it once.
The definition is on the thread from the first commit on, so nobody can change it while the execution is in progress.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from holdfast.api.errors import InvalidRequest
from holdfast.sessions.workflows.definition import MAX_OUTPUT, Definition, Step, StepType, parse_definition

PREFIX: Final = "signal.workflow."
STARTED: Final = "signal.workflow.started"
STEP_STARTED: Final = "signal.workflow.step_started"
STEP_PROCESS: Final = "signal.workflow.step_process"
STEP_ENDED: Final = "signal.workflow.step_ended"
APPROVAL: Final = "signal.workflow.approval"
DECIDED: Final = "signal.workflow.decided"
FINISHED: Final = "signal.workflow.finished"
MOST_ATTEMPTS: Final = 3


class ExecutionStatus(StrEnum):
    RUNNING = "running"
    NEEDS_APPROVAL = "needs_approval"
    OK = "ok"
    FAILED = "failed"
    CANCELLED = "cancelled"


class StepStatus(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    """For approval."""
    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class StepRecord:
    status: StepStatus
    attempt: int
    started_at: int
    ended_at: int | None = None
    output: str = ""
    error: str | None = None
    process: str | None = None
    """The process in the box, of a command."""
    digest: str | None = None
    """Of the resume token, of an approval."""


@dataclass(frozen=True, slots=True)
class Execution:
    definition: Definition
    workflow: str
    name: str
    session: str
    variables: Mapping[str, str]
    started_at: int
    by: str
    trigger: str | None = None
    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    status: ExecutionStatus = ExecutionStatus.RUNNING
    error: str | None = None
    ended_at: int | None = None

    @property
    def is_over(self) -> bool:
        return self.status in (ExecutionStatus.OK, ExecutionStatus.FAILED, ExecutionStatus.CANCELLED)

    @property
    def outputs(self) -> dict[str, str]:
        return {id: each.output for id, each in self.steps.items()}


# --- what to do next ---


@dataclass(frozen=True, slots=True)
class Nothing:
    """It is over, or waits for a decision."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Write that a step begins, and carry it out."""

    step: Step
    attempt: int


@dataclass(frozen=True, slots=True)
class GoOn:
    """A step has begun: wait for its end. Whoever began it may be dead."""

    step: Step
    record: StepRecord


@dataclass(frozen=True, slots=True)
class End:
    """Write that the execution has ended."""

    status: ExecutionStatus
    error: str | None = None


def decide(execution: Execution) -> Nothing | Begin | GoOn | End:
    if execution.is_over:
        return Nothing()
    for step in execution.definition.steps:
        record = execution.steps.get(step.id)
        if record is None:
            return Begin(step, 1)
        if record.status is StepStatus.FAILED:
            return End(ExecutionStatus.FAILED, f"step {step.id} failed: {record.error or 'for an unknown reason'}")
        if record.status is StepStatus.WAITING:
            return Nothing()
        if record.status is StepStatus.RUNNING:
            return GoOn(step, record)
    return End(ExecutionStatus.OK)


# --- the fold ---


def fold(execution: Execution | None, entry: Mapping[str, Any]) -> Execution | None:
    """Returns the execution after an entry of this server. What does not fit changes nothing. Never raises."""
    payload = entry["payload"]
    kind = payload["type"]
    try:
        if execution is None:
            return _started(entry, payload) if kind == STARTED else None
        if execution.is_over:
            return execution
        return _after(execution, kind, payload, entry["ts"])
    except (InvalidRequest, LookupError, TypeError, ValueError):
        return execution


def _started(entry: Mapping[str, Any], payload: Mapping[str, Any]) -> Execution:
    return Execution(
        parse_definition(payload["definition"]),
        str(payload["workflow"]),
        str(payload["name"]),
        str(payload["session"]),
        {str(name): str(value) for name, value in payload["variables"].items()},
        entry["ts"],
        str(payload["by"]),
        payload.get("trigger"),
    )


def _after(execution: Execution, kind: str, payload: Mapping[str, Any], at: int) -> Execution:
    if kind == FINISHED:
        return replace(execution, status=ExecutionStatus(payload["status"]), error=payload.get("error"), ended_at=at)
    id = str(payload["step"])
    record = execution.steps.get(id)
    if kind == STEP_STARTED:
        step = next(each for each in execution.definition.steps if each.id == id)
        if record is not None and (record.status is not StepStatus.RUNNING or payload["attempt"] <= record.attempt):
            return execution
        return _with(execution, step.id, StepRecord(StepStatus.RUNNING, payload["attempt"], at))
    if record is None:
        return execution
    if kind == STEP_PROCESS and payload["attempt"] == record.attempt:
        return _with(execution, id, replace(record, process=str(payload["process"])))
    if kind == APPROVAL and record.status is StepStatus.RUNNING:
        waiting = _with(execution, id, replace(record, status=StepStatus.WAITING, digest=str(payload["digest"])))
        return replace(waiting, status=ExecutionStatus.NEEDS_APPROVAL)
    if kind == DECIDED and record.status is StepStatus.WAITING:
        approved = payload["approve"] is True
        ended = replace(
            record,
            status=StepStatus.OK if approved else StepStatus.FAILED,
            ended_at=at,
            output="approved" if approved else "denied",
            error=None if approved else f"denied{_reason(payload.get('reason'))}",
        )
        return replace(_with(execution, id, ended), status=ExecutionStatus.RUNNING)
    if kind == STEP_ENDED and record.status is StepStatus.RUNNING:
        ended = replace(
            record,
            status=StepStatus(payload["status"]),
            ended_at=at,
            output=str(payload.get("output", ""))[:MAX_OUTPUT],
            error=payload.get("error"),
        )
        return _with(execution, id, ended)
    return execution


def _reason(reason: Any) -> str:
    return f": {reason[:500]}" if isinstance(reason, str) and reason else ""


def _with(execution: Execution, id: str, record: StepRecord) -> Execution:
    return replace(execution, steps={**execution.steps, id: record})


def step_json(step: Step, record: StepRecord | None) -> dict[str, Any]:
    """Returns a step for people and agents."""
    if record is None:
        return {"stepId": step.id, "type": step.type.value, "status": "pending"}
    return {
        "stepId": step.id,
        "type": step.type.value,
        "status": record.status.value,
        "attempt": record.attempt,
        "startedAt": record.started_at,
        "completedAt": record.ended_at,
        "output": record.output,
        "error": record.error,
    }


def waiting_step(execution: Execution) -> tuple[Step, StepRecord] | None:
    """Returns the step that waits for approval."""
    for step in execution.definition.steps:
        record = execution.steps.get(step.id)
        if step.type is StepType.APPROVAL and record is not None and record.status is StepStatus.WAITING:
            return step, record
    return None
