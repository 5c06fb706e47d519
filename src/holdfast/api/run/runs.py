"""Requests and responses about runs and their workspaces. A run itself is in `run_info`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.document import Document, Limits
from holdfast.api.environments import ClonedRepositories, EnvironmentPlace, EnvironmentReference, EnvironmentText
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
    ModelNames,
    PathText,
    Pids,
    PolicyText,
    Printable,
    PromptText,
    ProviderName,
    StrictBool,
    ThreadId,
    Title,
)
from holdfast.api.model.budgets import Budget
from holdfast.api.run.info import RunInfo
from holdfast.api.run.repositories import Source

HowChanged = Literal["added", "changed", "deleted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBox(Document):
    """The box for a run. Omitted fields are those of the environment, and else the provider's defaults."""

    provider: ProviderName | None = None
    """Defaults to `local`."""
    image: ImageText | None = None
    cpu: Cores | None = None
    memory: MemoryBytes | None = None
    disk: DiskBytes | None = None
    pids: Pids | None = None
    workdir: PathText | None = None
    """Defaults to `/workspace`."""
    network: NetworkPolicy | None = None
    """Defaults to none."""
    idle_seconds: Annotated[int, Limits(ge=1, lt=1 << 40, strict=True)] | None = None
    """Idle time after which the box sleeps until it is needed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun(Document):
    prompt: PromptText
    prompt_id: EntryId | None = None
    """The id of the prompt's entry. A second request with the same id launches nothing."""
    author_id: Printable | None = None
    agent: AgentName | None = None
    """Required, unless the environment names one."""
    model: ModelName | None = None
    """`NAME` or `NAME/MODEL`. Defaults to the only model."""
    thread: ThreadId | None = None
    """An existing, idle thread. By default, a new one is created."""
    new_thread: ThreadId | None = None
    """The id of the new thread."""
    title: Title | None = None
    labels: Labels = field(default_factory=dict)
    workspace: Digest | None = None
    """The files that the workspace starts with, uploaded before."""
    source: Source | None = None
    """Where these files came from. It is kept on the thread, for the way home of the changes."""
    box: RunBox | None = None
    """Defaults to the settings of the thread's box, or to those of any box."""
    timeout: Annotated[int, Limits(ge=1, le=MAX_TIMEOUT, strict=True)] | None = None
    """Seconds after which the run is ended as `timed_out`."""
    checkpoints: PolicyText | None = None
    """When the files of the box are saved. Defaults to every turn on this machine, and to never elsewhere."""
    environment: EnvironmentReference | None = None
    """An environment of the server, `NAME` or `NAME@VERSION`. The other fields take precedence over it."""
    environment_file: EnvironmentText | None = None
    """The text of an environment in a repository, `holdfast.toml`. It is not trusted: what it may not decide by itself
    has to be allowed first."""
    environment_place: EnvironmentPlace | None = None
    """Where that file is: the absolute path of its folder on the caller's machine, or the address of the repository.
    What was allowed there counts."""
    repositories: ClonedRepositories = ()
    """The further repositories of the environment, as they are in the workspace."""
    fallbacks: ModelNames = ()
    """Models to use if `model` gives no answer, in order."""
    budget: Budget | None = None
    """Of the run. When it is used up, its models are refused."""
    delegate: StrictBool = False
    """Give the agent tools to delegate tasks to other agents. Later runs of the thread have them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRun(Document):
    """The settings of a run: everything but its prompt and its files."""

    agent: AgentName | None = None
    model: ModelName | None = None
    thread: ThreadId | None = None
    box: RunBox | None = None
    environment: EnvironmentReference | None = None
    environment_file: EnvironmentText | None = None
    environment_place: EnvironmentPlace | None = None
    fallbacks: ModelNames = ()
    budget: Budget | None = None


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
    """The id of the prompt's entry on the thread."""


@dataclass(frozen=True, slots=True)
class Steered(Document):
    thread: str
    run: str
    """The run that is in progress, or the one that was launched."""
    prompt: str
    """The id of the prompt's entry on the thread."""
    how: Literal["queued", "interrupting", "launched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage(Document):
    runs: tuple[RunInfo, ...]
    """Newest first."""
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
    """Interrupt the agent, and continue with this prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(Document):
    prompt: PromptText | None = None
    """The next prompt. By default, the agent is told to continue."""
    prompt_id: EntryId | None = None
    author_id: Printable | None = None
    agent: AgentName | None = None
    model: ModelName | None = None
    fresh: StrictBool = False
    """In a new box, with the files of the old one if they are still available."""
    box: RunBox | None = None
    network: NetworkPolicy | None = None
    """The new network policy of its box. Everything else stays as it is."""
    provider: ProviderName | None = None
    """The provider to which its box is moved, with the files of its workspace."""
    memory: MemoryBytes | None = None
    """The new limits of its box. A new box with the same files replaces it."""
    disk: DiskBytes | None = None
    timeout: Annotated[int, Limits(ge=0, le=MAX_TIMEOUT, strict=True)] | None = None
    """As in a launch; 0 means none. Defaults to the previous value."""
    checkpoints: PolicyText | None = None
    """As in a launch. Defaults to the previous value."""
    fallbacks: ModelNames = ()
    """As in a launch. Defaults to the previous ones, unless there is another `model`."""
    budget: Budget | None = None
    """As in a launch. Defaults to the previous one, of which each run has its own."""


@dataclass(frozen=True, slots=True)
class Finding(Document):
    """One stage of a run."""

    stage: str
    ok: bool | None
    """None if the run did not reach it, or if that is unknown."""
    detail: str
    next_step: str | None


@dataclass(frozen=True, slots=True)
class Diagnosis(Document):
    """The progress of a run, what is wrong with it, and what to do."""

    run: str | None
    status: str
    findings: tuple[Finding, ...]
    wrong: str | None
    """What is wrong, in one sentence, or None."""
    next_step: str | None


@dataclass(frozen=True, slots=True)
class FileChange(Document):
    path: str
    """For people: bytes that are not UTF-8 are escaped."""
    how: HowChanged
    binary: bool
    added: int
    """Lines."""
    removed: int


@dataclass(frozen=True, slots=True)
class Changes(Document):
    """The changes of a workspace since its start."""

    files: tuple[FileChange, ...]
    patch: str
    """The start of the patch, for people. `/patch`, and `patch()` of a client, return all of it, byte for byte."""
    truncated: bool
    """Whether there are more files, or more of the patch, than this contains."""
    exact: bool
    """Whether `patch` is complete, byte for byte."""
    ignored: int
    """New files that are left out because of the workspace's `.gitignore` files."""
    refused: tuple[str, ...]
    """Paths that are left out because git accepts no such names in a patch."""
    digest: str = ""
    """Of all changes. `holdfast apply --accept DIGEST` brings these home and no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace(Document):
    digest: str
