"""Interpreters that live in the server, and the executions of code in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from holdfast.api.access.keys import Caller
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
from holdfast.api.run.runs import RunBox

Line = Annotated[str, Limits(min_length=1, max_length=2048, check=without_nul)]
WorkspaceName = Annotated[str, Limits(min_length=1, max_length=200, check=without_nul)]
SessionName = Annotated[str, Limits(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
GitRef = Annotated[str, Limits(min_length=1, max_length=255)]
Count = Annotated[int, Limits(ge=0, lt=1 << 53, strict=True)]


# --- requests ---


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits(Document):
    """Limits on the calls that code makes to the host. None means no limit."""

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
    """The settings of a new interpreter. They are stored on its thread."""

    template: Line | None = None
    model: ModelName | None = None
    """The model for `llm_query`. Defaults to the only one."""
    box: RunBox = field(default_factory=RunBox)
    repo_url: Line | None = None
    """The URL of a repository to clone, which the box must be able to reach."""
    ref: GitRef | None = None
    volume: VolumeName | None = None
    """Mounted at `/home/box/memory`. Defaults to the volume of the workspace."""
    workspace: WorkspaceName | None = None
    """A workspace of the caller's tenant, whose users share its volume. Each user has sessions of their own on it."""
    output_fields: Annotated[tuple[SubmitField, ...], Limits(max_length=256)] | None = None
    """The parameters of SUBMIT."""
    timeout_seconds: Seconds = 900.0
    output_limit: Annotated[int, Limits(ge=100, le=1_000_000, strict=True)] = OUTPUT_LIMIT
    """Characters of each stream that a result contains. A file has the complete output."""
    memory: MemoryBytes | None = None
    """Memory limit of its Python, in bytes."""
    restore: Literal["fork"] | None = None
    """`fork`: the process is forked before each execution, in case the code has to be killed."""
    limits: CallLimits = field(default_factory=CallLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewInterpreter(InterpreterSettings):
    title: Title | None = None
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewExecution(Document):
    code: Annotated[str, Limits(max_length=8_000_000)]
    variables: Annotated[dict[str, Any], Limits(max_length=10_000)] = field(default_factory=dict)
    """Set as globals before the code runs. Values that JSON lacks have a form with `$`: see the documentation."""
    timeout_seconds: Seconds | None = None
    id: ExecutionId | None = None
    """A second request with the same id runs nothing, and waits for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceChange(Document):
    """Omitted fields stay as they are."""

    repo_url: Line | None = None
    ref: GitRef | None = None
    volume: VolumeName | None = None
    force_new: bool = False
    """Start with another box. Data that only the old box had is lost."""


# --- responses ---


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterInfo(Document):
    """An interpreter at the time of the request. Times are UTC milliseconds."""

    id: str
    thread: str
    title: str | None
    labels: dict[str, str]
    created_at: int
    last_activity_at: int
    is_live: bool
    """Whether it is in the server's memory. If not, it is loaded when it is used."""
    box: str | None
    """None if it no longer has a box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterPage(Document):
    interpreters: tuple[InterpreterInfo, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceTransition(Document):
    """How an interpreter got its box."""

    kind: Literal["created", "reused", "resumed", "recreated"]
    reason: str
    changed: tuple[str, ...] = ()
    """What was done in the box, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterDetail(InterpreterInfo):
    """An interpreter, with details from its thread."""

    python: str | None
    transition: WorkspaceTransition | None
    executions: int
    calls: int
    """Calls that its code made to the host."""
    input_tokens: int
    output_tokens: int
    cost: float
    settings: dict[str, Any] | None
    """None if it lives in the process that created it."""
    creator: Caller | None = None
    """Who created it, by the credential of that request. None if it lives in the process that created it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionError(Document):
    """The error of the code."""

    kind: str
    """The class of the exception."""
    message: str
    traceback: str
    syntax: bool
    """Whether the error was found before any code ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionArtifact(Document):
    name: str
    media_type: str
    path: str
    """Its path in the box: read it at `/v1/boxes/{id}/files`."""
    size: int
    data: str | None
    """Its content in base64, if it is small enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteExecution(Document):
    """The result of an execution. An error of the code is in `error`."""

    id: str
    ok: bool
    stdout: str
    stderr: str
    value: Any
    """The value of the last expression as JSON. Values that JSON lacks are documents with `$`."""
    value_text: str | None
    value_missing: str | None
    """Why `value` is null although there was a value."""
    error: ExecutionError | None
    submitted: dict[str, Any] | None
    """The arguments of SUBMIT."""
    artifacts: tuple[ExecutionArtifact, ...]
    seconds: float
    compute_seconds: float
    """Without the time spent waiting for the host."""
    state_lost: bool
    restored: bool
    """Its Python was killed, and its memory is as it was before this execution."""
    text: str
    """The result as text for a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSession(Document):
    names: tuple[str, ...]
    unsaved: dict[str, str]
    """Names that could not be saved, with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedState(Document):
    names: tuple[str, ...]
    unsaved: dict[str, str]
    """Names that could not be loaded, with the reason."""
