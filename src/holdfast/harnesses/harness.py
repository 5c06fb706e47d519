"""The contract of a harness: how to install, configure, start, read, judge and resume one coding agent.

A harness only decides. It returns files and commands for a box, and the run carries them out. Its reader turns the
agent's output into entries and runs inside the box (`holdfast.guest.agent_reader`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.api.errors.runs import InvalidRun
from holdfast.api.model.models import Api as Api
from holdfast.harnesses.imports import ImportedSession
from holdfast.harnesses.runner_archive import pack
from holdfast.harnesses.tool_server import ToolAccess


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """How an agent in a box reaches a model: through the guest API, with a token for this run only."""

    api: Api
    url: str
    """The model gateway as seen from the box, without an API version: `http://127.0.0.1:3128/model`."""
    token: str = field(repr=False)
    model: str
    """The provider's name for the model."""
    context_window: int = 128_000
    max_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Place:
    """The paths of a run in its box. All are absolute."""

    workspace: str
    state: str
    """The folder for configuration and session files of this agent on this thread. It persists between runs."""
    program: str
    """The folder that the agent is installed in, with `node_modules` and `bin`. Read-only."""
    node: str
    """The node program."""
    python: tuple[str, ...] = ("python3",)
    """The command that starts Python for the guest's code, including drivers."""


@dataclass(frozen=True, slots=True)
class Task:
    """What an agent is asked to do in one run."""

    prompt: str
    place: Place
    model: ModelAccess
    session: str | None = None
    """The agent's id of the session to continue. Its files are in the box, or were rebuilt there."""
    tools: ToolAccess | None = None
    """The tools by which it delegates tasks, if it may. Their files are written beside its own."""
    asks: tuple[str, ...] = ()
    """What it may do only if somebody permits it each time. Only for agents with a host."""


@dataclass(frozen=True, slots=True)
class AbortByLine:
    """The agent ends its turn when it reads this on its standard input."""

    line: str


@dataclass(frozen=True, slots=True)
class AbortBySignal:
    number: int


@dataclass(frozen=True, slots=True)
class Command:
    """What the runner starts."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str | None = None
    """Text for its standard input. If None, standard input is empty, unless the agent is aborted by a line."""
    abort: AbortByLine | AbortBySignal = AbortBySignal(2)
    driver: bool = False
    """The runner starts the harness's own driver. `argv` then holds the driver's arguments."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A session rebuilt from the entries of a thread."""

    session: str
    files: Mapping[str, bytes]
    """File contents by absolute path in the box."""
    commands: tuple[tuple[str, ...], ...] = ()
    """Commands to run in the box after the files are written, in the environment of the run. For example, an import."""


@dataclass(frozen=True, slots=True)
class Package:
    """The npm package of an agent, pinned by a lock file next to its module."""

    name: str
    version: str
    command: str
    """The program in `node_modules/.bin`."""


class Harness(ABC):
    """One coding agent. Stateless: one instance serves all runs."""

    name: ClassVar[str]
    title: ClassVar[str]
    """For people: `Claude Code`."""
    package: ClassVar[Package | None]
    """None if the agent is already in the box, or the user names its command."""
    apis: ClassVar[tuple[Api, ...]]
    """The APIs that it supports, best first."""
    hosted: ClassVar[bool] = False
    """It has a server that can stay in the box of a session, and a host for it (`holdfast.harnesses.NAME.host`)."""

    @property
    def agent(self) -> str:
        """The name that callers use for it: `<name>`, or `<name>:<command>` for an agent with a command."""
        return self.name

    @abstractmethod
    def files(self, task: Task) -> Mapping[str, bytes]:
        """Returns its configuration files by absolute path in the box. They are written before each run."""

    @abstractmethod
    def command(self, task: Task) -> Command:
        """Returns the command that starts a new session, or continues `task.session`."""

    @abstractmethod
    def rebuild(self, entries: Iterable[Mapping[str, Any]], task: Task) -> Rebuilt | None:
        """Rebuilds a session that the agent can load from its entries, oldest first.

        A tool call that a crash left open is closed as the agent would. Returns None if there is nothing to continue.
        """

    def read_session(self, data: bytes) -> ImportedSession:
        """Reads a session file that the agent wrote on another machine. Raises `InvalidRun`."""
        raise InvalidRun(
            f"sessions of {self.title} cannot be imported", hint="import one of pi, codex, claude, opencode"
        )

    def archive(self) -> bytes:
        """Returns the runner with the reader of this agent."""
        return pack((self.name,))

    def host(self, task: Task) -> Mapping[str, Any]:
        """Returns the configuration of its host, if it is `hosted`. The token of its model is for all runs of the
        session.
        """
        raise NotImplementedError

    def model_name(self, task: Task) -> str:
        """Returns what its server calls the model, if it is `hosted`."""
        return task.model.model

    def prompt(self, task: Task, context: str | None) -> str:
        """Returns the prompt, after context such as a handed-over transcript or a note about lost files."""
        return task.prompt if context is None else f"{context}\n\n{task.prompt}"
