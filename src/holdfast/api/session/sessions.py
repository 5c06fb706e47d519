"""Sessions: workspaces that people and agents share, and the prompts that are queued to them. Times are UTC
milliseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final

from holdfast.api.document import Document, Limits
from holdfast.api.environments import ClonedRepositories, EnvironmentPlace, EnvironmentReference, EnvironmentText
from holdfast.api.limits import (
    MAX_TIMEOUT,
    AgentName,
    Digest,
    EntryId,
    Labels,
    ModelName,
    ModelNames,
    PolicyText,
    Printable,
    PromptText,
    StrictBool,
    ThreadId,
    Title,
    without_nul,
)
from holdfast.api.model.budgets import Budget
from holdfast.api.run.info import RunError
from holdfast.api.run.repositories import Source
from holdfast.api.run.runs import RunBox
from holdfast.api.tools.operation import ToolGroup

MOST_PROMPTS: Final = 100
"""Prompts that may wait in one session."""
MOST_CONTEXT: Final = 16_000
"""Characters of all context files of a session together."""
_CONTEXT_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\.(md|txt)")
MAX_ATTACHMENTS: Final = 4 * 1024 * 1024
"""Characters of all attachments of a prompt together."""
MOST_ATTACHMENTS: Final = 8
_HIGHEST: Final = 1_000
MOST_AGENT_FILES: Final = 16_000
"""Characters of all skills, and of all tools, of a session's agent."""
AgentTool = Annotated[str, Limits(max_length=100, pattern=r"^[A-Za-z0-9_*-]+$")]
ChannelKey = Annotated[str, Limits(max_length=133, pattern=r"^[a-z][a-z0-9_-]{0,31}:[!-~]{1,100}$")]


class SessionState(StrEnum):
    """The states of a session, as its thread has them. docs/sessions.md has the transitions."""

    INITIALIZING = "initializing"
    """Its box is being made."""
    RUNNING = "running"
    HIBERNATING = "hibernating"
    HIBERNATED = "hibernated"
    """Its files are saved, and it uses nothing else. The next prompt restores it."""
    RESTORING = "restoring"
    TERMINATED = "terminated"
    ERROR = "error"
    """It has no box, and gets none. `error` says why."""


class SandboxState(StrEnum):
    """The state of a session's box, for people."""

    STARTING = "starting"
    RUNNING = "running"
    HIBERNATING = "hibernating"
    HIBERNATED = "hibernated"
    RESTORING = "restoring"
    STOPPED = "stopped"
    ERROR = "error"


class AgentState(StrEnum):
    """The state of a session's agent, for people."""

    STARTING = "starting"
    BUSY = "busy"
    IDLE = "idle"
    """It has answered every prompt."""
    QUEUED = "queued"
    """Prompts wait for it."""
    SLEEPING = "sleeping"
    STANDBY = "standby"
    """It has had no prompt yet."""
    STOPPED = "stopped"
    ERROR = "error"


class JointState(StrEnum):
    """The state of a session in one word, for lists."""

    STARTING = "starting"
    RUNNING_BUSY = "running_busy"
    RUNNING_IDLE = "running_idle"
    QUEUED = "queued"
    WAKING = "waking"
    SLEEPING = "sleeping"
    STANDBY = "standby"
    STOPPED = "stopped"
    ERROR = "error"


class PromptMode(StrEnum):
    """When the agent gets a prompt."""

    FOLLOWUP = "followup"
    """After its current work."""
    STEER = "steer"
    """At once: its current work is interrupted."""
    COLLECT = "collect"
    """Together with other prompts of this mode, once none has come for three seconds."""


class Permission(StrEnum):
    """What the agent of a session may have to ask for, in OpenCode's words."""

    BASH = "bash"
    EDIT = "edit"
    """Change files."""
    READ = "read"
    GLOB = "glob"
    GREP = "grep"
    LIST = "list"
    TASK = "task"
    """Start a subagent."""
    SKILL = "skill"
    WEBFETCH = "webfetch"
    WEBSEARCH = "websearch"
    EXTERNAL_DIRECTORY = "external_directory"
    """Use files outside of the workspace."""
    ALL = "all"
    """All of these, and the tools of MCP servers."""


class StepState(StrEnum):
    """What became of one part of a session: a step that is done once, or a program that is kept running."""

    WAITING = "waiting"
    """What it needs does not run yet."""
    STARTING = "starting"
    RUNNING = "running"
    DONE = "done"
    RESTARTING = "restarting"
    """It has ended, and is started again after a pause."""
    MISSING = "missing"
    """The box does not have the program. The rest works without it."""
    BLOCKED = "blocked"
    """Another program in the box has its port."""
    FAILED = "failed"
    STOPPED = "stopped"
    """The box does not run."""


class PromptStatus(StrEnum):
    QUEUED = "queued"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Its run was cancelled or interrupted, or the session was terminated before it began."""
    REVERTED = "reverted"
    """It has ended, and the session went back to before it. An undo gives it its status again."""


def _context_name(name: str) -> str:
    # A plain name below one folder: no path that could lead out of it, and no hidden file.
    if not _CONTEXT_NAME.fullmatch(name):
        raise ValueError("must be letters, digits, '.', '_' or '-', not begin with '.', and end with .md or .txt")
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFile(Document):
    """A file that tells the agent who it is, or something about its task. It is written outside of the workspace."""

    name: Annotated[str, Limits(min_length=1, max_length=64, check=_context_name)]
    """Such as `10-reviewer.md`. Agents are told to read them in the order of their names."""
    text: Annotated[str, Limits(max_length=MOST_CONTEXT, check=without_nul)]


ContextFiles = Annotated[tuple[ContextFile, ...], Limits(max_length=16)]


def _few_characters(files: tuple[AgentFile, ...]) -> tuple[AgentFile, ...]:
    """Returns the files of an agent. Raises `ValueError` if they have too many characters together."""
    size = sum(len(each.text) for each in files)
    if size > MOST_AGENT_FILES:
        raise ValueError(f"they have {size} characters, and at most {MOST_AGENT_FILES} are allowed")
    return files


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile(Document):
    """A skill or a tool of an agent."""

    name: Annotated[str, Limits(max_length=64, pattern=r"^[a-z0-9]+([-_][a-z0-9]+)*$")]
    text: Annotated[str, Limits(min_length=1, max_length=MOST_AGENT_FILES, check=without_nul)]


AgentFiles = Annotated[tuple[AgentFile, ...], Limits(max_length=16, check=_few_characters)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings(Document):
    """What the server of a session's agent gets beside its model."""

    tools: Annotated[dict[AgentTool, StrictBool], Limits(max_length=100)] = field(default_factory=dict)
    """Tools by name: whether the agent may use them."""
    skills: AgentFiles = ()
    """The text of each `SKILL.md`."""
    custom_tools: AgentFiles = ()
    """Tools that are written for the agent's server: for OpenCode in JavaScript. They run in the box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSession(Document):
    agent: AgentName | None = None
    """Required, unless the environment names one."""
    model: ModelName | None = None
    """`NAME` or `NAME/MODEL`. Defaults to the only model."""
    new_session: ThreadId | None = None
    """The id of the session, which is that of its thread. A second request with the same id creates nothing."""
    parent: ThreadId | None = None
    """The session that this one belongs to. When that is terminated, so is this one."""
    title: Title | None = None
    labels: Labels = field(default_factory=dict)
    workspace: Digest | None = None
    """The files that the workspace starts with, uploaded before."""
    source: Source | None = None
    """Where these files came from."""
    repositories: ClonedRepositories = ()
    """The further repositories of the environment, as they are in the workspace."""
    box: RunBox | None = None
    timeout: Annotated[int, Limits(ge=1, le=MAX_TIMEOUT, strict=True)] | None = None
    """Seconds after which the work on one prompt is ended as `timed_out`."""
    checkpoints: PolicyText | None = None
    environment: EnvironmentReference | None = None
    """An environment of the server, `NAME` or `NAME@VERSION`. The other fields take precedence over it."""
    environment_file: EnvironmentText | None = None
    environment_place: EnvironmentPlace | None = None
    fallbacks: ModelNames = ()
    """Models to use if `model` gives no answer, in order."""
    budget: Budget | None = None
    """Of the work on one prompt."""
    delegate: StrictBool = False
    """Give the agent tools to delegate tasks to other agents."""
    workstation: StrictBool | None = None
    """Start a desktop and an editor in its box, with those programs that the box has. A box without an image gets
    `holdfast/workstation`, if that was built. None: if that was built, and no image or environment is given."""
    context: ContextFiles = ()
    """Files for the agent, such as personas: `MOST_CONTEXT` characters together."""
    tools: Annotated[tuple[ToolGroup, ...], Limits(max_length=len(ToolGroup))] = ()
    """What else the session and its agent may ask for: docs/session-tools.md."""
    ask: Annotated[tuple[Permission, ...], Limits(max_length=len(Permission))] = ()
    """What the agent may do only if somebody permits it each time. Only for agents with a server."""
    author_id: Printable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment(Document):
    """A file or an image that belongs to a prompt."""

    mime: Annotated[str, Limits(max_length=100, pattern=r"^[a-z]+/[A-Za-z0-9.+-]+$")]
    data: Annotated[str, Limits(min_length=1, max_length=MAX_ATTACHMENTS, pattern=r"^[A-Za-z0-9+/]+={0,2}$")]
    """In base64."""
    filename: Annotated[str, Limits(min_length=1, max_length=200, pattern=r"^[^/\x00-\x1f]+$")] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPrompt(Document):
    prompt: PromptText
    attachments: Annotated[tuple[Attachment, ...], Limits(max_length=MOST_ATTACHMENTS)] = ()
    """Files and images, of 4 MB in all. An agent without a server gets them as files in its box."""
    prompt_id: EntryId | None = None
    """The id of the prompt's entry. A second request with the same id queues nothing."""
    author_id: Printable | None = None
    channel: ChannelKey | None = None
    """Where it comes from, such as `telegram:-1001`. Each channel has a conversation of its own with the agent.
    Defaults to `web:default`."""
    mode: PromptMode = PromptMode.FOLLOWUP
    priority: Annotated[int, Limits(ge=-_HIGHEST, le=_HIGHEST, strict=True)] = 0
    """A prompt with a higher number comes before those with a lower one. Equal ones come in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChange(Document):
    """A request to hibernate, restore or terminate a session."""

    by: Printable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCommand(Document):
    """A slash command of the agent. It is queued as a prompt."""

    command: Annotated[str, Limits(min_length=1, max_length=200, pattern=r"[A-Za-z0-9_.:/-]+")]
    """Its name, without the slash."""
    args: Annotated[str, Limits(max_length=100_000)] = ""
    prompt_id: EntryId | None = None
    """The id of the prompt's entry. A second request with the same id queues nothing."""
    author_id: Printable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAnswer(Document):
    """An answer to a question of the agent."""

    question: Annotated[str, Limits(min_length=1, max_length=200)]
    answer: Annotated[str, Limits(max_length=100_000)]
    """For a permission `once`, `always` or `reject`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RevertRequest(Document):
    """Take a session back to where it was before a prompt, or undo the latest time that this was done."""

    prompt: EntryId | None = None
    """Required, unless it is an undo."""
    undo: StrictBool = False
    key: Printable | None = None
    """A second request with the same key changes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewReview(Document):
    """A request for a review of the changes in the workspace."""

    base: Annotated[str, Limits(max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9_./~^@-]*$")] | None = None
    """A commit, branch or tag. Without it, what is not committed is reviewed."""
    prompt_id: EntryId | None = None
    """The id of the prompt's entry. A second request with the same id queues nothing."""
    author_id: Printable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Document):
    id: str
    file: str
    line_start: int
    line_end: int
    severity: str
    """`critical`, `warning`, `suggestion` or `nitpick`."""
    category: str
    title: str
    description: str
    suggested_fix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewedFile(Document):
    path: str
    summary: str
    review_order: int
    lines_added: int
    lines_deleted: int
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewInfo(Document):
    prompt: str
    files: tuple[ReviewedFile, ...]
    overall_summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionInfo(Document):
    """A question, or a request for a permission, that the agent waits for."""

    id: str
    kind: str
    """`question` or `permission`."""
    text: str
    options: tuple[str, ...]
    run: str
    asked_at: int
    expires_at: int
    """When the agent is told that nobody answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionList(Document):
    questions: tuple[QuestionInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModel(Document):
    provider: str
    id: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentModels(Document):
    models: tuple[AgentModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptInfo(Document):
    """A prompt of a session. The text is on the thread, in the entry with this id."""

    id: str
    status: PromptStatus
    mode: PromptMode
    priority: int
    created_at: int
    run: str | None
    """The run that works on it, or that ended it."""
    attempts: int
    """Runs that were started for it. A run that was lost, with its box or its server, is repeated."""
    channel: str = "web:default"
    """The conversation that it belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptList(Document):
    prompts: tuple[PromptInfo, ...]
    """Those that have ended, the latest at most, in the order of their ends; then those that have not, in the order
    in which the agent gets them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkFile(Document):
    path: str
    status: str
    """`added`, `modified` or `deleted`."""
    additions: int | None = None
    """Lines. None of a binary file, and of one that git does not track."""
    deletions: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWork(Document):
    """What the workspace of a session was like after a run, according to the git of its box, which programs in the box
    can change."""

    run: str
    branch: str | None
    """None if no branch is checked out."""
    commits: int
    """Since the commit that the session began with."""
    files: tuple[WorkFile, ...]
    """Those that differ from that commit, committed or not: the first 50."""
    more: bool
    """Whether there are more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo(Document):
    """A session at the time of the request. Its id is that of its thread."""

    id: str
    title: str | None
    state: SessionState
    sandbox_state: SandboxState
    agent_state: AgentState
    joint_state: JointState
    agent: str
    model: str
    provider: str
    parent: str | None
    labels: dict[str, str]
    box: str | None
    run: str | None
    """Its latest run."""
    queued: int
    """Prompts that wait."""
    processing: int
    """Prompts that the agent works on."""
    ended: int
    """Prompts that have ended."""
    why: str | None
    """Why it came into its state, if that was not asked for."""
    error: RunError | None
    released: bool
    """Whether a terminated session has let go of everything but its files."""
    workspace: bool
    """Whether it still has its files."""
    work: SessionWork | None = None
    """What its latest run has changed. None while that is not known, and if its files are no git repository."""
    created_at: int
    changed_at: int
    """The time of its last change of state."""
    last_activity_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage(Document):
    sessions: tuple[SessionInfo, ...]
    """Most recently active first."""
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedWorkspace(Document):
    id: str
    freed: int
    """Bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStep(Document):
    """A part of a session: a step of its start, or a program of its workstation. The box tells what became of its
    programs, so programs in the box can lie about them."""

    name: str
    """Such as `box`, `context`, `screen` or `editor`."""
    title: str
    state: StepState
    since: int | None = None
    """The time of its last change of state."""
    restarts: int = 0
    ms: int | None = None
    """How long it took until it was done, or ready."""
    detail: str = ""
    output: str = ""
    """The end of what a program has printed."""
    path: str | None = None
    """Where the gateway has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDiagnosis(Document):
    id: str
    state: SessionState
    box: str | None
    workstation: bool
    """Whether a desktop and an editor belong to it."""
    ms: int | None
    """How long its last start took until all programs were ready. None while they start."""
    steps: tuple[SessionStep, ...]
