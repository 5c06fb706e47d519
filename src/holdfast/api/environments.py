"""Environments: named, versioned recipes for the boxes of runs, in TOML. docs/environments.md describes the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Final

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.document import Document, Limits
from holdfast.api.limits import AgentName, Digest, ModelName, ModelNames, ProviderName, StrictBool, without_nul
from holdfast.api.run.repositories import ClonedRepository

FILE_NAME: Final = "holdfast.toml"
"""The file of an environment in a repository."""
MAX_TEXT: Final = 16 * 1024
"""Characters of a recipe. What a run needs of it is kept on the thread."""
ENVIRONMENT_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
MOST_REPOSITORIES: Final = 16
READY_SECONDS: Final = 60

EnvironmentText = Annotated[str, Limits(min_length=1, max_length=MAX_TEXT, check=without_nul)]
EnvironmentName = Annotated[str, Limits(pattern=f"^{ENVIRONMENT_NAME}$")]
EnvironmentReference = Annotated[str, Limits(pattern=f"^{ENVIRONMENT_NAME}(@[1-9][0-9]{{0,8}})?$")]
"""`NAME` for the latest version, or `NAME@VERSION`."""
EnvironmentPlace = Annotated[str, Limits(min_length=1, max_length=16 * 1024, check=without_nul)]
"""Where the file of an environment is: the absolute path of its folder on the caller's machine, or the address of the
repository that was cloned. Consent is for one place. The caller knows it; nothing in a repository decides it."""
ClonedRepositories = Annotated[tuple[ClonedRepository, ...], Limits(max_length=MOST_REPOSITORIES)]
GIVEN_FIELDS: Final = ("image", "network", "cpu", "memory", "disk", "pids")
GivenField = Annotated[str, Limits(pattern=f"^({'|'.join(GIVEN_FIELDS)})$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRecord(Document):
    """One version of an environment."""

    name: str
    version: int
    digest: str
    """SHA-256 of the text."""
    text: str
    created_at: int
    """UTC milliseconds."""
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentList(Document):
    environments: tuple[EnvironmentRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveEnvironment(Document):
    text: EnvironmentText
    after: Annotated[int, Limits(ge=0, strict=True)] | None = None
    """The version that this one follows; 0 for a new environment. With another latest version, nothing is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckEnvironment(Document):
    environment: EnvironmentReference | None = None
    text: EnvironmentText | None = None
    place: EnvironmentPlace | None = None
    """Where the text is from, for what was allowed there."""
    agent: AgentName | None = None
    """What the caller chooses by itself. It is checked in place of what the environment has."""
    model: ModelName | None = None
    fallbacks: ModelNames = ()
    provider: ProviderName | None = None
    given: Annotated[tuple[GivenField, ...], Limits(max_length=len(GIVEN_FIELDS))] = ()
    """Other settings of the box that the caller chooses by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildEnvironment(Document):
    environment: EnvironmentReference | None = None
    text: EnvironmentText | None = None
    place: EnvironmentPlace | None = None
    """Where the text is from, for what was allowed there."""
    workspace: Digest | None = None
    """The files that setup reads its inputs from, uploaded before, with the repositories of the environment."""
    repositories: ClonedRepositories = ()
    """The repositories of the environment, as they are in that workspace."""
    again: StrictBool = False
    """Run the setup commands even if they were run before with the same inputs."""


class GapKind(StrEnum):
    PROVIDER = "provider"
    IMAGE = "image"
    CAPABILITY = "capability"
    AGENT = "agent"
    MODEL = "model"
    SECRET = "secret"
    CONSENT = "consent"
    """A file from a repository asks for something that nobody has granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap(Document):
    """Something that the server lacks for an environment."""

    kind: GapKind
    name: str
    message: str
    next_step: str
    required: bool = True
    """Without it, a run is refused. Otherwise the thread has a warning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentCheck(Document):
    reference: str
    """`NAME@VERSION`, or the name of the file."""
    digest: str
    gaps: tuple[Gap, ...]
    setup: str
    """`none`, `built` or `missing`. `unknown` if it depends on files that were not given."""
    ok: bool
    """Whether a run would be launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentBuild(Document):
    reference: str
    digest: str
    snapshot: str | None
    """The files after the setup. None if the environment has no setup."""
    built: bool
    """Whether the commands were run now, not earlier."""
    milliseconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowEnvironment(Document):
    text: EnvironmentText
    place: EnvironmentPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class DisallowEnvironment(Document):
    place: EnvironmentPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentDisallowed(Document):
    place: str
    removed: bool
    """Whether anything was allowed there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConsent(Document):
    """What a file from a repository asks for. Granting it is for exactly this text, at one place."""

    digest: str
    asks: tuple[str, ...]
    granted: bool


# --- what a run keeps of its environment ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Service(Document):
    """A command that runs in the box beside the agent."""

    name: str
    command: str
    """For the shell. It stays in the foreground."""
    port: int | None = None
    """It is ready when something listens on this port."""
    check: str | None = None
    """It is ready when this command ends with 0."""
    seconds: int = READY_SECONDS
    """How long it may take until it is ready."""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentUse(Document):
    """What a run needs of its environment, as it is kept on the thread."""

    reference: str
    digest: str
    setup: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    network: NetworkPolicy | None = None
    """What the setup may reach: without the secrets of the run, and without the hosts that they open. None, as in older
    runs: what the box may reach."""
    repositories: tuple[ClonedRepository, ...] = ()
    """Further repositories that are in the workspace."""
    services: tuple[Service, ...] = ()
    test: str | None = None
    warnings: tuple[str, ...] = ()
    """What is missing and not required."""

    @property
    def is_file(self) -> bool:
        """Whether it came from a repository, not from the server."""
        return self.reference == FILE_NAME

    @property
    def group(self) -> str:
        """The environment whose older setups this one makes obsolete."""
        return self.reference.partition("@")[0]

    def kept(self) -> dict[str, Any]:
        """Returns the fields that are not empty."""
        return {name: value for name, value in self.to_json().items() if value or name in ("reference", "digest")}

    @classmethod
    def from_kept(cls, value: object) -> EnvironmentUse | None:
        """Reads what `kept` returned, from a thread. Returns None if it is something else."""
        if not isinstance(value, Mapping):
            return None
        try:
            return cls.from_json(value)
        except (LookupError, TypeError, ValueError, AttributeError):
            return None
