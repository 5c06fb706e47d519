"""Runs, and the workspaces that they begin with. What a run is told as is in `run_info`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.spec import WORKSPACE
from holdfast.api.document import Document, Limits
from holdfast.api.limits import (
    MAX_TIMEOUT,
    AgentName,
    Cores,
    Digest,
    DiskBytes,
    EntryId,
    ImageText,
    Labels,
    MemoryBytes,
    ModelName,
    PathText,
    Pids,
    Printable,
    PromptText,
    ProviderName,
    StrictBool,
    ThreadId,
    Title,
)
from holdfast.api.run_info import RunInfo

HowChanged = Literal["added", "changed", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBox(Document):
    """The box of a run, as asked for. What is left out is left to the provider."""

    provider: ProviderName = "local"
    image: ImageText | None = None
    cpu: Cores | None = None
    memory: MemoryBytes | None = None
    disk: DiskBytes | None = None
    pids: Pids | None = None
    workdir: PathText = WORKSPACE
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    idle_seconds: Annotated[int, Limits(ge=1, lt=1 << 40, strict=True)] | None = None
    """After which it sleeps, until it is needed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun(Document):
    prompt: PromptText
    prompt_id: EntryId | None = None
    """Of the prompt's entry. A second request with the same one launches nothing."""
    author_id: Printable | None = None
    agent: AgentName
    model: ModelName | None = None
    """`NAME` or `NAME/MODEL`; the only one, if it is left out."""
    thread: ThreadId | None = None
    """One that exists and is idle. If it is left out, a new one is made."""
    new_thread: ThreadId | None = None
    """The id of the new one."""
    title: Title | None = None
    labels: Labels = field(default_factory=dict)
    workspace: Digest | None = None
    """What the workspace begins with, uploaded before."""
    box: RunBox | None = None
    """Left out: as the thread's box is, or as boxes are."""
    timeout: Annotated[int, Limits(ge=1, le=MAX_TIMEOUT, strict=True)] | None = None
    """Seconds that the run may take in all, after which it is ended as `timed_out`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRun(Document):
    """A run before it is asked for: everything but its prompt and its files."""

    agent: AgentName
    model: ModelName | None = None
    thread: ThreadId | None = None
    box: RunBox | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun(Document):
    agent: str
    model: str
    """`NAME/MODEL`."""


@dataclass(frozen=True, slots=True)
class Launched(Document):
    thread: str
    run: str
    prompt: str
    """Id of its entry on the thread."""


@dataclass(frozen=True, slots=True)
class Steered(Document):
    thread: str
    run: str
    """The run that is in progress, or the one that was launched."""
    prompt: str
    """Id of its entry on the thread."""
    how: Literal["queued", "interrupting", "launched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage(Document):
    runs: tuple[RunInfo, ...]
    """The newest first."""
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel(Document):
    by: Printable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steer(Document):
    prompt: PromptText
    prompt_id: EntryId | None = None
    author_id: Printable | None = None
    interrupt: StrictBool = False
    """End what the agent is doing, and go on with this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Document):
    prompt: PromptText | None = None
    """What to do next. Left out: to go on."""
    prompt_id: EntryId | None = None
    author_id: Printable | None = None
    agent: AgentName | None = None
    model: ModelName | None = None
    fresh: StrictBool = False
    """In a new box, with the files of the old one if they are still available."""
    box: RunBox | None = None
    network: NetworkPolicy | None = None
    """What its box may reach from now on; all else stays as it is."""
    memory: MemoryBytes | None = None
    """What its box may take from now on. A new box takes its place, with its files."""
    disk: DiskBytes | None = None
    timeout: Annotated[int, Limits(ge=0, le=MAX_TIMEOUT, strict=True)] | None = None
    """As of a launch; 0 is none. Left out: as before."""


@dataclass(frozen=True, slots=True)
class Finding(Document):
    """One stage of a run."""

    stage: str
    ok: bool | None
    """None: the run has not come that far, or it is not known."""
    detail: str
    next_step: str | None


@dataclass(frozen=True, slots=True)
class Diagnosis(Document):
    """How far a run came, what is wrong with it, and what to do."""

    run: str | None
    status: str
    findings: tuple[Finding, ...]
    wrong: str | None
    """What is wrong, in a sentence. None if nothing is."""
    next_step: str | None


@dataclass(frozen=True, slots=True)
class FileChange(Document):
    path: str
    """For people: what is no UTF-8 in it is escaped."""
    how: HowChanged
    binary: bool
    added: int
    """Lines."""
    removed: int


@dataclass(frozen=True, slots=True)
class Changes(Document):
    """A workspace now, against what it began with."""

    files: tuple[FileChange, ...]
    patch: str
    """The beginning of the patch, for people. `/patch`, and `patch()` of a client, give all of it, byte for byte."""
    truncated: bool
    """There are more files, or there is more of the patch, than is here."""
    exact: bool
    """`patch` is the whole one, byte for byte."""
    ignored: int
    """New files that are left out, as the workspace's `.gitignore` files say."""
    refused: tuple[str, ...]
    """Paths that are left out, because git takes such names from no patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace(Document):
    digest: str
