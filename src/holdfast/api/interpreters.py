"""Interpreters that live in the server, and the executions of code in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from holdfast.api.document import Document, Limits
from holdfast.api.limits import (
    OUTPUT_LIMIT,
    ExecutionId,
    Labels,
    MemoryBytes,
    ModelName,
    Seconds,
    Title,
    VolumeName,
    without_nul,
)
from holdfast.api.runs import RunBox

Line = Annotated[str, Limits(min_length=1, max_length=2048, check=without_nul)]
GitRef = Annotated[str, Limits(min_length=1, max_length=255)]
Count = Annotated[int, Limits(ge=0, lt=1 << 53, strict=True)]


# --- requests ---


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits(Document):
    """Limits on the calls that code makes to the host. None is no limit."""

    calls: Count | None = 50
    tokens: Count | None = None
    cost: Annotated[float, Limits(ge=0, allow_inf_nan=False)] | None = None
    """In dollars."""
    seconds: Seconds | None = None
    call_seconds: Seconds = 60.0
    """For one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitField(Document):
    """One argument of SUBMIT."""

    name: Annotated[str, Limits(min_length=1, max_length=128)]
    type: Annotated[str, Limits(min_length=1, max_length=1000)] = "Any"
    """The name of a Python type: `list[str]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterSettings(Document):
    """What an interpreter is made with. All of it is on its thread."""

    template: Line | None = None
    model: ModelName | None = None
    """What `llm_query` asks; the only one, if it is left out."""
    box: RunBox = field(default_factory=RunBox)
    repo_url: Line | None = None
    """A repository to clone, at a URL that the box may reach."""
    ref: GitRef | None = None
    volume: VolumeName | None = None
    """Mounted at `/home/box/memory`."""
    output_fields: Annotated[tuple[SubmitField, ...], Limits(max_length=256)] | None = None
    """What SUBMIT takes."""
    timeout_seconds: Seconds = 900.0
    output_limit: Annotated[int, Limits(ge=100, le=1_000_000, strict=True)] = OUTPUT_LIMIT
    """Characters of each stream that a result has. The whole is in a file."""
    memory: MemoryBytes | None = None
    """Bytes that its Python may take."""
    restore: Literal["fork"] | None = None
    """`fork`: a live fork is made before each execution, in case that the code has to be killed."""
    limits: CallLimits = field(default_factory=CallLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInterpreter(InterpreterSettings):
    title: Title | None = None
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewExecution(Document):
    code: Annotated[str, Limits(max_length=8_000_000)]
    variables: Annotated[dict[str, Any], Limits(max_length=10_000)] = field(default_factory=dict)
    """Become globals before the code runs. What JSON lacks has a form with `$`: see the documentation."""
    timeout_seconds: Seconds | None = None
    id: ExecutionId | None = None
    """A second request with the same id runs nothing, and follows the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceChange(Document):
    """What is left out stays as it is."""

    repo_url: Line | None = None
    ref: GitRef | None = None
    volume: VolumeName | None = None
    force_new: bool = False
    """Begin with another box. What only the old one had is lost."""


# --- responses ---


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterInfo(Document):
    """An interpreter as the server knew it when it was asked. Times are UTC milliseconds."""

    id: str
    thread: str
    title: str | None
    labels: dict[str, str]
    created_at: int
    last_activity_at: int
    is_live: bool
    """It is in the server's memory now. If not, it is found again when it is used."""
    box: str | None
    """None if it has no box any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterPage(Document):
    interpreters: tuple[InterpreterInfo, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceTransition(Document):
    """How an interpreter came to the box that it has."""

    kind: Literal["created", "reused", "resumed", "recreated"]
    reason: str
    changed: tuple[str, ...] = ()
    """What was done in the box, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterDetail(InterpreterInfo):
    """An interpreter, and what its thread tells of it."""

    python: str | None
    transition: WorkspaceTransition | None
    executions: int
    calls: int
    """That its code made to the host."""
    input_tokens: int
    output_tokens: int
    cost: float
    settings: dict[str, Any] | None
    """None if it lives in the process that made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionError(Document):
    """What the code did wrong."""

    kind: str
    """The class of the exception."""
    message: str
    traceback: str
    syntax: bool
    """Nothing of it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionArtifact(Document):
    name: str
    media_type: str
    path: str
    """In the box: `/v1/boxes/{id}/files` has it."""
    size: int
    data: str | None
    """In base64, if it is small enough to come along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteExecution(Document):
    """The result of a piece of code. What the code did wrong is in `error`."""

    id: str
    ok: bool
    stdout: str
    stderr: str
    value: Any
    """Of the last expression, as JSON. What JSON lacks is a document with `$`."""
    value_text: str | None
    value_missing: str | None
    """Why `value` is null although there was a value."""
    error: ExecutionError | None
    submitted: dict[str, Any] | None
    """What SUBMIT was called with."""
    artifacts: tuple[ExecutionArtifact, ...]
    seconds: float
    compute_seconds: float
    """Without the time that it waited for the host."""
    state_lost: bool
    restored: bool
    """Its Python was killed: what it had in memory is as it was before this execution."""
    text: str
    """What a model reads of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedState(Document):
    names: tuple[str, ...]
    unsaved: dict[str, str]
    """Names that could not be loaded, with why."""
