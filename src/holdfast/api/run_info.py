"""A run, as the server tells it. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from holdfast.api.document import Document

RUN_FINISHED: Final = "signal.run.finished"
"""The type of the entry that ends a run."""


class RunStatus(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"
    """Whatever should have posted its end is gone."""


class Stage(StrEnum):
    """How far a run came, in this order."""

    CLAIM = "claim"
    BOX = "box"
    PROVISION = "provision"
    RUNNER = "runner"
    """A runner is about to be, or was, started."""
    AGENT = "agent"
    """The runner has been heard of."""
    EVENT = "event"
    """The agent has read its prompt, and said or done something."""


class CancelKind(StrEnum):
    CANCEL = "cancel"
    INTERRUPT = "interrupt"
    """Make room for a prompt that waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunError(Document):
    """Why a run failed. The codes that agents give are in `holdfast.api.outcomes`."""

    code: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage(Document):
    """What a run used of its models, as the agent counts."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    cost: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo(Document):
    """A run as it stood when the server was asked."""

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
    """When it last gave a sign of life."""
    prompts: tuple[str, ...]
    """Ids of the chats that it answers."""
    waiting: int
    """Prompts that wait for its end."""
    resumes: str | None
    """The run that it goes on from."""
    provider: str
    box: str | None
    box_how: str | None
    """live, started, restored or created."""
    files: str | None
    """What its workspace began as: kept, snapshot, workspace or empty."""
    session: str | None
    """new, continued, rebuilt or handed-over."""
    cancel: CancelKind | None
    """What it was asked to do, while it is in progress."""
    exit_code: int | None
    """Of the agent."""
    error: RunError | None
    usage: TokenUsage | None
    ended_by: str | None
    """Who posted its end: its runner, or whoever found that it was over."""

    @property
    def live(self) -> bool:
        return self.status is RunStatus.RUNNING
