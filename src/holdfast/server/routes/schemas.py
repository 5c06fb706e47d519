"""The REST surface's requests and answers, as its OpenAPI document shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StringConstraints
from pydantic.alias_generators import to_camel

from holdfast.threads.access import MAX_TOKEN_SECONDS, ApiKey, IssuedToken, Scope
from holdfast.threads.authority import check_chosen_id
from holdfast.threads.offsets import format_offset_text
from holdfast.threads.rows import ThreadRow, ThreadStatus
from holdfast.threads.run_events import CancelKind, Run, RunStatus, Stage
from holdfast.threads.surface import PREFIX, THREADS

ThreadId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
Title = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Printable = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[!-~]+$")]
EntryId = Annotated[Printable, AfterValidator(check_chosen_id)]
"""Of an entry, where the caller chooses it."""
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^:\x00-\x1f]+$")]
LabelValue = Annotated[str, StringConstraints(max_length=512)]
Labels = Annotated[dict[LabelName, LabelValue], Field(max_length=64)]


class Model(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class ErrorDetail(Model):
    code: str
    message: str
    hint: str | None = None
    """What to do next, where that is not plain from the message."""
    request_id: str


class ErrorAnswer(Model):
    error: ErrorDetail


class LastEntry(Model):
    id: str
    ts: int
    type: str
    text: str | None = None


class RunError(Model):
    code: str
    message: str
    hint: str | None = None


class TokenUsage(Model):
    """Of the models, as the agent counts."""

    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    cost: float = 0


class RunModel(Model):
    """One execution of an agent."""

    id: str
    thread: str
    agent: str
    version: str | None
    model: str
    status: RunStatus
    stage: Stage
    """How far it came."""
    started_at: int
    ended_at: int | None
    last_sign_at: int
    """Of life."""
    prompts: list[str]
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
    """What it was asked to do, while it goes on."""
    exit_code: int | None
    """Of the agent."""
    error: RunError | None
    usage: TokenUsage | None
    ended_by: str | None
    """Who told of its end: its runner, or who found that it was over."""

    @classmethod
    def of(cls, thread: str, run: Run, waiting: int = 0) -> RunModel:
        error = run.error
        return cls(
            id=run.run,
            thread=thread,
            agent=run.agent,
            version=run.version,
            model=run.model,
            status=run.status,
            stage=run.stage,
            started_at=run.started_at,
            ended_at=run.ended_at,
            last_sign_at=run.last_sign,
            prompts=list(run.prompts),
            waiting=waiting,
            resumes=run.resumes,
            provider=run.provider,
            box=run.box,
            box_how=run.box_how,
            files=run.files,
            session=run.session,
            cancel=run.cancel,
            exit_code=run.exit_code,
            error=None
            if error is None
            else RunError(code=error.get("code", "failed"), message=error.get("message", ""), hint=error.get("hint")),
            usage=None if run.usage is None else TokenUsage.model_validate(run.usage),
            ended_by=run.ended_by,
        )


class Thread(Model):
    id: str
    title: str | None
    status: ThreadStatus
    parent: str | None
    labels: dict[str, str]
    archived: bool
    entry_count: int
    created_at: int
    """UTC milliseconds."""
    last_activity_at: int
    next_offset: str
    """Where a reader that knows this row goes on."""
    last_entry: LastEntry | None
    stream: str
    """Path of the thread as a Durable Stream."""
    run: RunModel | None
    """The latest."""

    @classmethod
    def of(cls, row: ThreadRow) -> Thread:
        return cls(
            id=row.id,
            title=row.title,
            status=row.status,
            parent=row.parent,
            labels=row.labels,
            archived=row.archived,
            entry_count=row.entry_count,
            created_at=row.created_at,
            last_activity_at=row.last_activity_at,
            next_offset=format_offset_text(row.folded),
            last_entry=LastEntry(**row.last_entry) if row.last_entry else None,
            stream=f"{PREFIX}{THREADS}{row.id}",
            run=None if row.runs.latest is None else RunModel.of(row.id, row.runs.latest, len(row.runs.waiting)),
        )


class ThreadList(Model):
    threads: list[Thread]
    next_cursor: str | None


class NewThread(Model):
    id: ThreadId | None = None
    title: Title | None = None
    parent: ThreadId | None = None
    labels: Labels = Field(default_factory=dict)


class ThreadChange(Model):
    title: Title | None = None
    labels: Labels | None = None
    archived: StrictBool | None = None


class EntryModel(Model):
    id: str
    ts: int
    author_id: str | None = None
    payload: dict[str, Any]


class EntryList(Model):
    entries: list[EntryModel]
    next_offset: str
    up_to_date: bool


class NewChat(Model):
    text: Annotated[str, StringConstraints(min_length=1)]
    author_id: Printable | None = None
    id: EntryId | None = None
    """Say the same thing twice with one id, and it stands once."""


class Chatted(Model):
    entry: EntryModel
    next_offset: str


class NewLink(Model):
    ttl_seconds: int = Field(default=24 * 3600, ge=1, le=MAX_TOKEN_SECONDS, strict=True)


class Link(Model):
    path: str
    """Of the thread's page, with the key to it in the part that browsers never send."""
    expires_at: int


class NewToken(Model):
    scope: Scope = Scope.READ
    ttl_seconds: int = Field(default=7200, ge=1, le=MAX_TOKEN_SECONDS, strict=True)


class Token(Model):
    token: str
    thread: str
    scope: Scope
    expires_at: int

    @classmethod
    def of(cls, issued: IssuedToken) -> Token:
        return cls(token=issued.token, thread=issued.thread, scope=issued.scope, expires_at=issued.expires_at)


class NewKey(Model):
    name: Annotated[str, StringConstraints(min_length=1, max_length=200)]


class Key(Model):
    id: str
    name: str
    created_at: int
    revoked_at: int | None

    @classmethod
    def of(cls, key: ApiKey) -> Key:
        return cls(id=key.id, name=key.name, created_at=key.created_at, revoked_at=key.revoked_at)


class KeyList(Model):
    keys: list[Key]


class CreatedKey(Model):
    id: str
    name: str
    created_at: int
    key: str
    """Shown this once: only its digest is kept."""


class Health(Model):
    status: Literal["ok"] = "ok"
    version: str
    started_at: int
