"""Workflows, triggers and executions over REST, for people. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from holdfast.api.document import Document, Limits
from holdfast.api.limits import StrictBool, Title


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionStep(Document):
    step_id: str
    type: str
    status: str
    """pending, running, waiting, ok or failed."""
    attempt: int = 0
    started_at: int | None = None
    completed_at: int | None = None
    output: str = ""
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingApproval(Document):
    step_id: str
    prompt: str
    items: tuple[str, ...]
    resume_token: str = field(repr=False)
    """Approves or denies this step, once. Whoever has it may decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionInfo(Document):
    """An execution of a workflow. Its id is that of its thread."""

    id: str
    workflow: str
    name: str
    session: str
    status: str
    """running, needs_approval, ok, failed or cancelled."""
    error: str | None
    started_at: int
    completed_at: int | None
    started_by: str
    trigger: str | None
    variables: dict[str, str]
    steps: tuple[ExecutionStep, ...]
    requires_approval: PendingApproval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Document):
    approve: StrictBool
    resume_token: Annotated[str, Limits(min_length=1, max_length=200)] = field(repr=False)
    reason: Title | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelExecution(Document):
    reason: Title | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredWebhook(Document):
    execution_id: str
    status: str


def execution_of(shown: dict[str, Any], steps: list[dict[str, Any]]) -> ExecutionInfo:
    """Returns an execution from what the operations of sessions return."""
    waiting = shown.get("requiresApproval")
    return ExecutionInfo(
        id=shown["executionId"],
        workflow=shown["workflowId"],
        name=shown["name"],
        session=shown["sessionId"],
        status=shown["status"],
        error=shown["error"],
        started_at=shown["startedAt"],
        completed_at=shown["completedAt"],
        started_by=shown["startedBy"],
        trigger=shown["triggerId"],
        variables=shown["variables"],
        steps=tuple(map(ExecutionStep.from_json, steps)),
        requires_approval=None if waiting is None else PendingApproval.from_json(waiting),
    )
