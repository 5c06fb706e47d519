"""`holdfast provider`: where boxes are created. Credentials come from standard input, the environment or a hidden
prompt; none is shown.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from holdfast.cli.completion import complete_provider
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.removal import remove_named
from holdfast.cli.server.provider_options import NO_ACCOUNT_OPTIONS, AccountOptions, settings_of
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import YesOption
from holdfast.cli.terminal.console import (
    Cell,
    hint,
    is_terminal,
    note,
    write_field,
    write_json,
    write_line,
    write_table,
)
from holdfast.providers.registry import descriptors

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.api.box.records import Step
    from holdfast.api.providers import ProviderRecord, ProviderTrial
    from holdfast.client import Client
    from holdfast.providers.descriptor import Setting

_MAX_INPUT: Final = 64 * 1024
_STEP_WIDTH: Final = len("authorize")

NameArgument = Annotated[
    str,
    Argument(metavar="NAME", help="Name of the provider.", show_default=False, autocompletion=complete_provider),
]


def add(
    name: Annotated[str, Argument(metavar="NAME", help="Name of the account, or a kind.", show_default=False)],
    kind: Annotated[
        str | None,
        Option("--kind", metavar="KIND", help="Kind of provider. Default: the name.", show_default=False),
    ] = None,
    account: AccountOptions = NO_ACCOUNT_OPTIONS,
    credential_stdin: Annotated[
        bool, Option("--credential-stdin", help="Read the credential from standard input.")
    ] = False,
    credential_env: Annotated[
        bool, Option("--credential-env", help="Read the credential from the variables that holdfast up uses.")
    ] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Add an account of a provider, or change one: options that are left out keep their values.

    Boxes can be created in it at once, with --provider NAME. The credential is stored encrypted on the server, and
    sent only to the provider. Standard input has it alone, or as lines of NAME=VALUE. Without an option, you are asked.

    \b
    holdfast provider add sprites --credential-stdin < token.txt
    holdfast provider add work --kind modal --modal-app boxes --credential-stdin < work.env
    """
    settings = {each: str(value) if isinstance(value, Path) else value for each, value in settings_of(account).items()}

    async def find(client: Client) -> ProviderRecord | None:
        return next((each for each in await client.providers.list() if each.name == name), None)

    if kind is None and (found := ask(where, find)) is not None:
        kind = found.kind
    secrets = _secrets_of(kind or name)
    credential = _read_credential(name, secrets, from_stdin=credential_stdin, from_env=credential_env)

    async def work(client: Client) -> ProviderRecord:
        return await client.providers.add(name, kind=kind, settings=settings, credential=credential)

    made = ask(where, work)
    if as_json:
        write_json(made.to_json())
        return
    _print(made)
    write_field("next", hint(f"holdfast provider test {made.name}"))


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List providers, those that are ready first."""

    async def work(client: Client) -> list[ProviderRecord]:
        return await client.providers.list()

    found = ask(where, work)
    if as_json:
        write_json({"providers": [each.to_json() for each in found]})
        return
    rows = [
        (
            Cell(each.name, "bold" if each.is_ready else "dim"),
            each.kind,
            Cell("ready", "green") if each.is_ready else Cell("unusable", "yellow"),
            str(each.boxes),
            _source(each),
            Cell(each.isolation if each.is_ready else each.reason or "", "dim"),
        )
        for each in found
    ]
    write_table(("name", "kind", "state", "boxes", "credential", "isolation"), rows)


def try_(name: NameArgument, *, where: Where, as_json: JsonOption = False) -> Exit:
    """Create a box, run a command in it and delete it. Prints how long each step takes. Exits with 1 if one fails."""
    from holdfast.cli.box.health import step_lines

    def show(step: Step) -> None:
        for line in step_lines([step], _STEP_WIDTH):
            write_line(*line)

    async def work(client: Client) -> ProviderTrial:
        return await client.providers.test(name, on_step=None if as_json else show)

    try:
        trial = ask(where, work)
    except KeyboardInterrupt:
        note("stopped", "the server deletes what the test created")
        raise
    if as_json:
        write_json(trial.to_json())
    elif trial.ok:
        write_field("next", hint(f"holdfast box create --provider {name}"))
    return Exit.OK if trial.ok else Exit.FAILURE


def remove(name: NameArgument, yes: YesOption = False, *, where: Where, as_json: JsonOption = False) -> None:
    """Remove an account and its credential. It must have no boxes. Its snapshots and volumes stay where they are."""
    remove_named(
        name,
        f"account {name} and its credential",
        "holdfast provider remove",
        where=where,
        yes=yes,
        as_json=as_json,
        check=lambda client: client.providers.get(name),
        remove=lambda client: client.providers.remove(name),
    )


def _secrets_of(kind: str) -> Sequence[Setting]:
    """The parts of a credential of this kind. None if it is not known here: the server decides about it."""
    return next((each.secrets for each in descriptors() if each.name == kind), ())


def _read_credential(name: str, secrets: Sequence[Setting], *, from_stdin: bool, from_env: bool) -> dict[str, str]:
    if from_stdin and from_env:
        raise CommandError("--credential-stdin and --credential-env exclude each other", exit=Exit.USAGE)
    if from_stdin:
        return parse_credential(sys.stdin.read(_MAX_INPUT), secrets)
    if from_env:
        return _from_environment(secrets, os.environ)
    if sys.stdin.isatty() and is_terminal():
        return _prompt(secrets)
    return {}


def parse_credential(text: str, secrets: Sequence[Setting]) -> dict[str, str]:
    """Read a credential: lines of NAME=VALUE, or the value alone if it has one part. No error quotes the text."""
    names = {known: each.name for each in secrets for known in (each.name, each.variable) if known is not None}
    lines = [line.strip() for line in text.splitlines()]
    lines = [line.removeprefix("export ") for line in lines if line and not line.startswith("#")]
    if not lines:
        raise CommandError("standard input contains no credential", next_step=_form(secrets), exit=Exit.USAGE)
    if len(secrets) == 1 and len(lines) == 1 and lines[0].partition("=")[0] not in names:
        return {secrets[0].name: lines[0]}
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        given, equals, value = line.partition("=")
        if not equals or given.strip() not in names:
            raise CommandError(
                f"line {number} of standard input is not part of this credential",
                next_step=_form(secrets),
                exit=Exit.USAGE,
            )
        found[names[given.strip()]] = value.strip().strip("'\"")
    return found


def _form(secrets: Sequence[Setting]) -> str:
    if len(secrets) == 1:
        return "give the value alone, in one line"
    return f"give lines of NAME=VALUE: {', '.join(each.name for each in secrets)}"


def _from_environment(secrets: Sequence[Setting], environment: Mapping[str, str]) -> dict[str, str]:
    wanted = {each.name: each.variable for each in secrets if each.variable is not None}
    found: dict[str, str] = {
        name: environment[variable] for name, variable in wanted.items() if environment.get(variable)
    }
    if not found:
        variables = ", ".join(wanted.values()) or "no variable"
        raise CommandError(
            f"the environment has no credential: {variables}", next_step="use --credential-stdin", exit=Exit.USAGE
        )
    return found


def _prompt(secrets: Sequence[Setting]) -> dict[str, str]:
    import typer  # here, because it takes long

    found: dict[str, Any] = {}
    for each in secrets:
        label = each.name.replace("_", " ")
        try:
            answer: str = typer.prompt(f"  {label:<19}", hide_input=True, default="", show_default=False)
        except typer.Abort:
            raise KeyboardInterrupt from None
        if answer.strip():
            found[each.name] = answer.strip()
    return found


def _source(record: ProviderRecord) -> Cell:
    if record.credential is not None:
        return Cell(record.credential)
    return Cell("none", "yellow") if record.needs_credential and record.is_added else Cell("—", "dim")


def _print(record: ProviderRecord) -> None:
    write_field("provider", Cell(record.name, "bold"), Cell(f"  {record.kind}", "dim"))
    for name, value in record.settings.items():
        write_field("setting", f"{name} = {value}")
    write_field("credential", _source(record))
    if record.is_ready:
        write_field("state", Cell("ready", "green"), Cell(f"  {record.isolation}", "dim"))
    else:
        write_field("state", Cell("unusable", "yellow"), Cell(f"  {record.reason}", "dim"))
