"""The environment of a run: named, or found in the folder. Asks on a terminal for what is missing before the launch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.environments import FILE_NAME, GIVEN_FIELDS, GapKind
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import Where
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import confirm
from holdfast.cli.terminal.console import Cell, is_terminal, note

if TYPE_CHECKING:
    from holdfast.api.environments import EnvironmentCheck, EnvironmentConsent
    from holdfast.cli.run.workspace.folder import Folder
    from holdfast.client import Client
    from holdfast.repositories.address import Address
    from holdfast.repositories.checkout import Checkout

_TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """At most one of them."""

    name: str | None = None
    file: str | None = None
    """The text of the file in the folder."""
    place: str | None = None
    """Where the file is."""
    allow: str | None = None
    """The command that allows what the file asks for."""

    @property
    def is_none(self) -> bool:
        return self.name is None and self.file is None


def choose_environment(
    name: str | None, chosen: Folder | Address | None, files: Folder | Checkout | None, *, without: bool
) -> RunEnvironment:
    """Returns the environment that the user names, or the one in the folder or the clone with the files of the run.

    `chosen` is what the user chose, and `files` where it is now.
    """
    if name is not None:
        if without:
            raise CommandError(
                "--env and --no-env exclude each other", next_step="give only one of them", exit=Exit.USAGE
            )
        from holdfast.cli.environment.reference import parse_reference

        parse_reference(name)
        return RunEnvironment(name=name)
    if without or chosen is None or files is None:
        return RunEnvironment()
    from holdfast.cli.environment.file import find_file
    from holdfast.cli.environment.place import allow_command, place_of
    from holdfast.cli.run.workspace.folder import Folder

    text = find_file(files.path if isinstance(files, Folder) else files.folder)
    if text is None:
        return RunEnvironment()
    return RunEnvironment(file=text, place=place_of(chosen), allow=allow_command(chosen, Path.cwd()))


def environment_text(where: Where, environment: RunEnvironment) -> str | None:
    """Returns the text of the environment. For one of the server, that is the version that `name` says."""
    if environment.name is None:
        return environment.file
    from holdfast.cli.environment.reference import parse_reference

    name, version = parse_reference(environment.name)

    async def work(client: Client) -> str:
        return (await client.environments.get(name, version=version)).text

    return ask(where, work)


def prepare_environment(
    where: Where,
    environment: RunEnvironment,
    *,
    agent: str | None,
    model: str | None,
    box: dict[str, Any],
    quiet: bool,
) -> None:
    """Ask for consent and for secrets that are missing. Without a terminal, nothing is asked, and the launch is
    refused with what to do."""
    if environment.is_none:
        return

    async def check(client: Client) -> EnvironmentCheck:
        return await client.environments.check(
            environment.name,
            text=environment.file,
            place=environment.place,
            agent=agent,
            model=model,
            provider=box.get("provider"),
            given=[each for each in GIVEN_FIELDS if each in box],
        )

    found = ask(where, check)
    if not quiet:
        note("environment", found.reference, Cell(f"  {found.digest[:12]}", "dim"))
    if quiet or not (sys.stdin.isatty() and is_terminal()):
        return
    for _ in range(_TRIES):
        asks = any(each.kind is GapKind.CONSENT for each in found.gaps)
        secrets = tuple(each.name for each in found.gaps if each.kind is GapKind.SECRET and each.required)
        if asks:
            _ask_consent(where, environment)
        elif secrets:
            for name in secrets:
                _ask_secret(where, name)
        else:
            return
        found = ask(where, check)


def _ask_consent(where: Where, environment: RunEnvironment) -> None:
    """Ask for all that the file asks for, even for what this run gives by options: the answer is for its text."""
    from holdfast.cli.environment.commands import print_asks

    text, place = environment.file, environment.place
    assert text is not None
    assert place is not None

    async def look(client: Client) -> EnvironmentConsent:
        return await client.environments.consent(text, place=place)

    print_asks(ask(where, look).asks)
    confirm(
        f"{FILE_NAME} of this repository asks for this. Allow it?",
        refusal="there is no terminal to ask for confirmation",
        command=environment.allow or "holdfast env allow --yes",
        unchanged="it was not allowed, so nothing was started; --no-env runs without the file",
    )

    async def work(client: Client) -> None:
        await client.environments.allow(text, place=place)

    ask(where, work)


def _ask_secret(where: Where, name: str) -> None:
    import typer  # here, because it takes long

    from holdfast.cli.secret import read_bindings

    try:
        value: str = typer.prompt(f"  {name}", hide_input=True, default="", show_default=False)
        if not value.strip():
            raise CommandError(
                f"the environment requires the secret {name}",
                next_step=f"holdfast secret set {name} --host HOST",
                exit=Exit.CONFLICT,
            )
        host: str = typer.prompt(f"  host that {name} may be sent to, such as api.example.com")
    except typer.Abort:
        raise KeyboardInterrupt from None
    bindings = read_bindings([host.strip()], None, None, None, None, None)

    async def work(client: Client) -> None:
        await client.secrets.set(name, value.strip(), bindings)

    ask(where, work)
