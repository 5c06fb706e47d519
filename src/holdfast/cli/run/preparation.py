"""What `holdfast run` and `holdfast session new` share: the options of an agent, and all that comes before the request.

The files are chosen and opened, the environment is found and prepared, the request is checked, and the files are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.completion import complete_agent
from holdfast.cli.errors import CommandError, read_value
from holdfast.cli.exits import Exit
from holdfast.cli.parsing.parameters import Option, OptionGroup
from holdfast.cli.run.options import (
    BudgetOption,
    CheckpointsOption,
    ModelOption,
    TimeoutOption,
    TokenBudgetOption,
    make_budget,
    split_models,
)
from holdfast.cli.terminal.durations import parse_duration

if TYPE_CHECKING:
    from holdfast.api.model.budgets import Budget
    from holdfast.cli.box.options import BoxOptions
    from holdfast.cli.options import Where
    from holdfast.cli.run.environment import RunEnvironment
    from holdfast.cli.run.workspace.files import FilesOptions, Sent
    from holdfast.cli.run.workspace.folder import Folder
    from holdfast.cli.run.workspace.repositories import Beside
    from holdfast.client import Client
    from holdfast.environments.environment import Repository
    from holdfast.repositories.address import Address
    from holdfast.repositories.checkout import Checkout


@dataclass(frozen=True)
class AgentOptions(OptionGroup):
    """The agent, and how it works."""

    agent: Annotated[
        str | None,
        Option(
            "--agent",
            metavar="NAME",
            help="Agent: pi, codex, claude or opencode. Required, unless the environment names one.",
            autocompletion=complete_agent,
        ),
    ] = None
    model: ModelOption = None
    timeout: TimeoutOption = None
    checkpoints: CheckpointsOption = None
    environment: Annotated[
        str | None,
        Option(
            "--env", metavar="NAME[@VERSION]", help="Environment on the server. Default: holdfast.toml of the folder."
        ),
    ] = None
    no_env: Annotated[bool, Option("--no-env", help="Ignore the holdfast.toml of the folder.")] = False
    budget: BudgetOption = None
    budget_tokens: TokenBudgetOption = None
    delegate: Annotated[
        bool, Option("--delegate", help="Let the agent delegate tasks to other agents, in boxes like its own.")
    ] = False


@dataclass(frozen=True)
class Upload:
    """What was sent to the server."""

    files: Sent | None
    beside: Sequence[Beside]


@dataclass(frozen=True)
class Preparation:
    """All that a request needs, except for the files, which `upload` sends."""

    agent: str | None
    model: str | None
    fallbacks: tuple[str, ...]
    seconds: int | None
    checkpoints: str | None
    budget: Budget | None
    delegate: bool
    box: dict[str, Any]
    environment: RunEnvironment
    chosen: Folder | Address | None
    local: Folder | Checkout | None
    further: tuple[Repository, ...]
    home: Path
    clone: ExitStack
    """Has the clone of a repository, until it is uploaded."""
    quiet: bool

    @property
    def is_plain(self) -> bool:
        """Whether neither options nor an environment say anything about the box and what the agent may do."""
        return not self.box and self.environment.is_none and not self.delegate

    def _terms(self) -> dict[str, Any]:
        return {
            "agent": self.agent,
            "model": self.model,
            "box": self.box,
            "fallbacks": self.fallbacks,
            "budget": self.budget,
            "environment": self.environment.name,
            "environment_file": self.environment.file,
            "environment_place": self.environment.place,
        }

    async def check(self, client: Client, *, thread: str | None = None) -> None:
        """Raises what the request would raise. Before the upload, so that a missing model is reported at once, and
        before repositories are cloned, for which the user has to have allowed the file.
        """
        await client.runs.check(thread=thread, **self._terms())

    async def upload(self, client: Client) -> Upload:
        """Clone the further repositories of the environment, and send all files."""
        from holdfast.cli.run.workspace.files import send_files
        from holdfast.cli.run.workspace.repositories import clone_all

        beside = await asyncio.to_thread(clone_all, self.further, self.home, self.clone, quiet=self.quiet)
        sent = await send_files(client, self.local, beside, quiet=self.quiet)
        self.clone.close()
        return Upload(sent, beside)

    def settings(self, upload: Upload) -> dict[str, Any]:
        """Returns the arguments of the request."""
        return self._terms() | {
            "workspace": None if upload.files is None else upload.files.digest,
            "source": None if upload.files is None else upload.files.source,
            "repositories": [each.repository for each in upload.beside],
            "timeout": self.seconds or None,
            "checkpoints": self.checkpoints,
            "delegate": self.delegate,
        }


@contextmanager
def preparing(
    options: AgentOptions,
    files: FilesOptions,
    box: BoxOptions,
    where: Where,
    *,
    without_agent: CommandError,
    continues: bool = False,
    quiet: bool,
) -> Iterator[Preparation]:
    """Choose the files and the environment, and find or start the server. Until the end of the block, what is missing
    of the user's consent is explained. `continues` means that the thread has its files. Raises `without_agent` if
    nothing names one.
    """
    from holdfast.cli.environment.place import explaining_consent
    from holdfast.cli.run.environment import choose_environment, environment_text, prepare_environment
    from holdfast.cli.run.workspace.files import opened
    from holdfast.cli.run.workspace.repositories import repositories_in
    from holdfast.cli.session import ensure_server, home_or_default

    chosen = files.choose(Path.cwd(), Path.home(), continues=continues)
    settings = box.to_json()
    seconds = read_value(parse_duration, options.timeout)
    home = home_or_default(where.home)
    with ExitStack() as clone:
        local = clone.enter_context(opened(chosen, home, quiet=quiet))
        used = choose_environment(options.environment, chosen, local, without=options.no_env)
        if used.is_none and options.agent is None:
            raise without_agent
        model, fallbacks = split_models(options.model)
        budget = make_budget(options.budget, options.budget_tokens)
        ensure_server(where)
        prepare_environment(where, used, agent=options.agent, model=model, box=settings, quiet=quiet)
        has_files = continues and chosen is None
        further = () if has_files else repositories_in(environment_text(where, used))
        with explaining_consent(used.allow):
            yield Preparation(
                options.agent,
                model,
                fallbacks,
                seconds,
                options.checkpoints,
                budget,
                options.delegate,
                settings,
                used,
                chosen,
                local,
                further,
                home,
                clone,
                quiet,
            )


def no_agent(of: str, command: str) -> CommandError:
    return CommandError(
        f"the {of} has no agent",
        next_step=f"{command} --agent NAME; holdfast agent list shows them",
        exit=Exit.USAGE,
    )
