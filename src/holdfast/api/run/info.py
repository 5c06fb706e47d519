"""A run as the server shows it. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.api.document import Document
from holdfast.api.model.budgets import Cost

RUN_FINISHED: Final = "signal.run.finished"
"""The type of the entry that ends a run."""


class RunStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"
    """The runner is gone, and did not post the end."""


class Stage(StrEnum):
    """The stages of a run, in order."""

    CLAIM = "claim"
    BOX = "box"
    PROVISION = "provision"
    RUNNER = "runner"
    """A runner is being started, or was started."""
    AGENT = "agent"
    """The runner has sent something."""
    EVENT = "event"
    """The agent has read its prompt and responded."""


class CancelKind(StrEnum):
    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    """End the run for a waiting prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError(Document):
    """Why a run failed. `holdfast.api.outcomes` lists the codes of agents."""

    code: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage(Document):
    """The usage of models by a run, as counted by the agent."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    cost: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(Document):
    """A run at the time of the request."""

    id: str
    thread: str
    agent: str
    version: str | None
    model: str
    status: RunStatus
    stage: Stage
    started_at: int
    ended_at: int | None
    last_sign_at: int
    """The time of its last heartbeat or entry."""
    prompts: tuple[str, ...]
    """Ids of the chat entries that it answers."""
    waiting: int
    """Prompts that wait for its end."""
    resumes: str | None
    """The run that it continues."""
    provider: str
    box: str | None
    box_how: str | None
    """live, started, restored, created or moved."""
    files: str | None
    """How its workspace started: kept, snapshot, workspace or empty."""
    session: str | None
    """new, continued, rebuilt or handed-over."""
    cancel: CancelKind | None
    """The cancellation that was requested, while the run is in progress."""
    exit_code: int | None
    """The exit code of the agent."""
    error: RunError | None
    usage: TokenUsage | None
    ended_by: str | None
    """What posted its end: its runner, or the server that found it dead."""
    cost: Cost | None = None
    """Its calls of models, as counted by the server. None if there were none."""
    turn: int = 0
    """Its number on the thread, from 1."""
    checkpoint: str | None = None
    """The snapshot of its box at its end, from which the thread can be forked or rewound."""
    needs_you: bool = False
    """It has ended because somebody has to decide: about a budget, a key, a secret or a limit."""

    @property
    def live(self) -> bool:
        return self.status is RunStatus.RUNNING
