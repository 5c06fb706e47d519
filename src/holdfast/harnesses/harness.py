"""The contract of a harness: how one coding agent is installed, configured, started, read, judged and resumed.

A harness decides and does nothing: it gives files and commands for a box, and the runs that use it carry them out. Its
reader, which turns what the agent prints into entries, runs inside the box (`holdfast.guest.agent_reader`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.api.model_apis import Api as Api
from holdfast.harnesses.runner_archive import pack


@dataclass(frozen=True, slots=True)
class ModelAccess:
    """A model as an agent in a box reaches it: through the guest API, by a token that is good for this run alone."""

    api: Api
    url: str
    """Of the model gateway as the box sees it, without a version: `http://127.0.0.1:3128/model`."""
    token: str = field(repr=False)
    model: str
    """As its provider names it."""
    context_window: int = 128_000
    max_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run finds things in its box. All paths are absolute there."""

    workspace: str
    state: str
    """A folder of this agent on this thread: configuration and session files. It stays from run to run."""
    program: str
    """The folder that the agent was installed in: `node_modules` and `bin` are there. Read-only."""
    node: str
    """The node program."""
    python: tuple[str, ...] = ("python3",)
    """What runs the guest's code, and so a driver."""


@dataclass(frozen=True, slots=True)
class Task:
    """What an agent is asked to do in one run."""

    prompt: str
    place: Place
    model: ModelAccess
    session: str | None = None
    """To be gone on with: the agent's own id of it, on disk already or rebuilt there."""


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
    """Text for its standard input. None: it reads the end of a file at once, unless it is aborted by a line."""
    abort: AbortByLine | AbortBySignal = AbortBySignal(2)
    driver: bool = False
    """`argv` is what follows the module name of the harness's own driver, which the runner starts."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A session made again from a thread's entries."""

    session: str
    files: Mapping[str, bytes]
    """By absolute path in the box."""
    commands: tuple[tuple[str, ...], ...] = ()
    """To be run in the box after the files are there, with the environment of the run's command: an import, say."""


@dataclass(frozen=True, slots=True)
class Package:
    """Where an agent comes from: an npm package, pinned by a lock file beside its module."""

    name: str
    version: str
    command: str
    """Its program, in `node_modules/.bin`."""


class Harness(ABC):
    """One coding agent. Stateless: one instance serves all runs."""

    name: ClassVar[str]
    title: ClassVar[str]
    """For people: `Claude Code`."""
    package: ClassVar[Package | None]
    """None: it is in the box already, or comes by a command of the user's."""
    apis: ClassVar[tuple[Api, ...]]
    """That it speaks, the best first."""

    @property
    def agent(self) -> str:
        """What it is asked for by: its name; of one that is made by a command, `<name>:<command>`."""
        return self.name

    @abstractmethod
    def files(self, task: Task) -> Mapping[str, bytes]:
        """Its configuration, by absolute path in the box; written anew before each run."""

    @abstractmethod
    def command(self, task: Task) -> Command:
        """How it is started: for a new session, or to go on with `task.session`."""

    @abstractmethod
    def rebuild(self, entries: Iterable[Mapping[str, Any]], task: Task) -> Rebuilt | None:
        """The session of these entries (of this agent, oldest first), to be loaded by the agent.

        A call left open by a crash is closed as the agent would. None where there is nothing to go on with.
        """

    def archive(self) -> bytes:
        """The runner, with what reads this agent."""
        return pack((self.name,))

    def prompt(self, task: Task, context: str | None) -> str:
        """The prompt with what the agent has to be told first: a handed-over transcript, files that were lost."""
        return task.prompt if context is None else f"{context}\n\n{task.prompt}"
