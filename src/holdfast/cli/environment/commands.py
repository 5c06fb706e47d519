"""`holdfast env`: environments, which are named recipes for the boxes of runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from holdfast.api.environments import GapKind
from holdfast.cli.completion import complete_agent
from holdfast.cli.environment.file import TEMPLATE, edit, find_file, read_file
from holdfast.cli.environment.place import allow_command, explaining_consent, place_of, place_of_folder
from holdfast.cli.environment.reference import parse_name, parse_reference
from holdfast.cli.errors import CommandError, command_error, read_value, usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.removal import remove_named
from holdfast.cli.run.options import ModelOption, split_models
from holdfast.cli.session import ask, ensure_server, home_or_default
from holdfast.cli.terminal.confirmation import YesOption, confirm
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration, parse_duration

if TYPE_CHECKING:
    from holdfast.api.environments import EnvironmentBuild, EnvironmentCheck, EnvironmentConsent, EnvironmentRecord
    from holdfast.client import Client
    from holdfast.repositories.address import Address

NameArgument = Annotated[str, Argument(metavar="NAME", help="Name of the environment.", show_default=False)]
ReferenceArgument = Annotated[
    str | None,
    Argument(
        metavar="[NAME[@VERSION]]",
        help="Environment on the server. Default: holdfast.toml of the folder.",
        show_default=False,
    ),
]
FileOption = Annotated[
    Path | None, Option("--file", "-f", metavar="PATH", help="Read the text from a file. - is standard input.")
]
FolderOption = Annotated[
    Path | None,
    Option("--dir", metavar="PATH", help="Folder with holdfast.toml and the inputs of its setup. Default: this one."),
]

RepoOption = Annotated[
    str | None,
    Option("--repo", metavar="PATH|URL[@REF]", help="Repository whose clones it is for, instead of a folder."),
]


def new(name: NameArgument, file: FileOption = None, *, where: Where, as_json: JsonOption = False) -> None:
    """Store a new environment. Without --file, your editor opens.

    \b
    holdfast env new web --file holdfast.toml
    holdfast run "fix the failing test" --env web
    """
    parse_name(name)
    ensure_server(where)
    text = edit(TEMPLATE) if file is None else read_file(file)

    async def work(client: Client) -> EnvironmentRecord:
        return await client.environments.save(name, text, after=0)

    _print_saved(ask(where, work), as_json=as_json)


def edit_(name: NameArgument, file: FileOption = None, *, where: Where, as_json: JsonOption = False) -> None:
    """Change an environment. This stores a new version; the earlier ones stay. Without --file, your editor opens."""
    parse_name(name)

    async def load(client: Client) -> EnvironmentRecord:
        return await client.environments.get(name)

    latest = ask(where, load)
    text = edit(latest.text) if file is None else read_file(file)

    async def work(client: Client) -> EnvironmentRecord:
        return await client.environments.save(name, text, after=latest.version)

    saved = ask(where, work)
    if saved.version == latest.version and not as_json:
        write_field("unchanged", f"{saved.name}@{saved.version}")
        return
    _print_saved(saved, as_json=as_json)


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List the environments on the server, each in its latest version."""

    async def work(client: Client) -> list[EnvironmentRecord]:
        return await client.environments.list()

    found = ask(where, work)
    if as_json:
        write_json({"environments": [each.to_json() for each in found]})
    elif not found:
        write_field("none", hint("create one with holdfast env new NAME --file holdfast.toml"))
    else:
        rows = [
            (Cell(each.name, "bold"), str(each.version), _age(each.created_at), Cell(each.digest[:12], "dim"))
            for each in found
        ]
        write_table(("name", "version", "changed", "digest"), rows)


def show(
    reference: Annotated[
        str, Argument(metavar="NAME[@VERSION]", help="Environment, by default in its latest version.")
    ],
    versions: Annotated[bool, Option("--versions", help="List its versions instead.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Print the text of an environment."""
    name, number = parse_reference(reference)

    async def work(client: Client) -> list[EnvironmentRecord]:
        if versions:
            return await client.environments.versions(name)
        return [await client.environments.get(name, version=number)]

    found = ask(where, work)
    if as_json:
        write_json({"versions": [each.to_json() for each in found]} if versions else found[0].to_json())
    elif versions:
        rows = [
            (Cell(f"{name}@{each.version}", "bold"), _age(each.created_at), each.created_by, each.digest[:12])
            for each in found
        ]
        write_table(("version", "stored", "by", "digest"), rows)
    else:
        write_line(found[0].text.rstrip("\n"))


def check(
    reference: ReferenceArgument = None,
    directory: FolderOption = None,
    agent: Annotated[
        str | None,
        Option(
            "--agent",
            metavar="NAME",
            help="Agent that the run would have. Default: that of the environment.",
            show_default=False,
            autocompletion=complete_agent,
        ),
    ] = None,
    model: ModelOption = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """List everything that the server lacks for an environment. Exits with 0 if a run would start.

    \b
    holdfast env check web
    holdfast env check --agent claude --model anthropic
    """
    text = _text_unless_named(reference, directory)
    place = None if text is None else place_of_folder(_folder(directory))
    first, fallbacks = split_models(model)
    ensure_server(where)

    async def work(client: Client) -> EnvironmentCheck:
        return await client.environments.check(
            reference, text=text, place=place, agent=agent, model=first, fallbacks=fallbacks
        )

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
        return Exit.OK if found.ok else Exit.FAILURE
    write_field("environment", Cell(found.reference, "bold"), Cell(f"  {found.digest[:12]}", "dim"))
    for gap in found.gaps:
        style, word = ("red", "missing") if gap.required else ("yellow", "optional")
        write_field(word, Cell(gap.message, style))
        consents = text is not None and gap.kind is GapKind.CONSENT
        write_field("", hint(allow_command(_folder(directory), Path.cwd()) if consents else gap.next_step))
    states = {
        "none": "",
        "built": "built: runs start from it",
        "missing": "not built yet: holdfast env build builds it",
    }
    if state := states.get(found.setup, "depends on files of the repository"):
        write_field("setup", hint(state))
    if found.ok:
        write_field("ready", Cell("a run can use it", "green"))
    return Exit.OK if found.ok else Exit.FAILURE


def build(
    reference: ReferenceArgument = None,
    directory: FolderOption = None,
    again: Annotated[bool, Option("--again", help="Run the setup even if nothing has changed.")] = False,
    every: Annotated[
        str | None,
        Option("--every", metavar="TIME", help="Go on: look again after each such time, and build what has changed."),
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Run the setup of an environment now, so that runs start at once.

    The result is kept, and found again as long as the image, the commands, their inputs and the network are the same.
    Runs build it by themselves if it is missing. With --every, it is built ahead of them whenever its inputs or the
    commits of its repositories have changed, until Ctrl-C.

    \b
    holdfast env build web
    holdfast env build --dir ~/my-project
    holdfast env build --every 10m
    """
    pause = read_value(parse_duration, every)
    ensure_server(where)
    shown = False
    while True:
        try:
            began = time.monotonic()
            made = _build(reference, directory, again=again, where=where, quiet=as_json or shown)
        except CommandError as error:
            if not (pause and shown):
                raise
            note("failed", error.message, hint(f"  again in {every}"))
        else:
            if made.built or not shown:
                _show_build(made, time.monotonic() - began, as_json=as_json)
            shown = True
        if not pause:
            return
        time.sleep(pause)


def _build(
    reference: str | None, directory: Path | None, *, again: bool, where: Where, quiet: bool
) -> EnvironmentBuild:
    from holdfast.cli.environment.upload import upload_inputs
    from holdfast.cli.terminal.step_progress import StepProgress

    text = _text_unless_named(reference, directory)
    place = None if text is None else place_of_folder(_folder(directory))

    async def work(client: Client) -> EnvironmentBuild:
        if text is not None and place is not None and "repositories" in text:
            await _require_consent(client, text, place)
        home = home_or_default(where.home)
        workspace, repositories = await upload_inputs(client, reference, text, directory, home, quiet=quiet)
        with StepProgress() as progress:
            return await client.environments.build(
                reference,
                text=text,
                place=place,
                workspace=workspace,
                repositories=repositories,
                again=again,
                progress=progress,
            )

    with explaining_consent(None if text is None else allow_command(_folder(directory), Path.cwd())):
        return ask(where, work)


def _show_build(made: EnvironmentBuild, seconds: float, *, as_json: bool) -> None:
    if as_json:
        write_json(made.to_json())
    elif made.snapshot is None:
        write_field("nothing", hint(f"{made.reference} has no setup"))
    else:
        how = f"built in {seconds:.1f} s" if made.built else "it was built before"
        write_field("setup", Cell(made.reference, "bold"), Cell(f"  {how}", "dim"))


def allow(
    directory: FolderOption = None,
    repo: RepoOption = None,
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Allow the holdfast.toml of a folder what it asks for: network access, secrets, models.

    This is for exactly this text in this folder, or in clones of a repository with --repo. When the file changes, it
    asks again. What was allowed there before is allowed no more.

    \b
    holdfast env allow --dir ~/my-project
    holdfast env allow --repo https://git.example.com/owner/name.git --yes
    """
    text, place = _text_and_place(directory, repo, where, quiet=as_json)
    ensure_server(where)

    async def look(client: Client) -> EnvironmentConsent:
        return await client.environments.consent(text, place=place)

    async def work(client: Client) -> EnvironmentConsent:
        return await client.environments.allow(text, place=place)

    consent = ask(where, look)
    if not consent.granted:
        if not as_json:
            print_asks(consent.asks)
        if consent.asks and not yes:
            confirm(
                "Allow it?",
                refusal="there is no terminal to ask for confirmation",
                command=_allow_command(directory, repo),
                unchanged="nothing was allowed",
            )
        consent = ask(where, work)
    if as_json:
        write_json(consent.to_json())
    elif not consent.asks:
        write_field("nothing", hint("the file asks for nothing that has to be allowed"))
    else:
        write_field("allowed", Cell(consent.digest[:12], "dim"))


def disallow(
    directory: FolderOption = None, repo: RepoOption = None, *, where: Where, as_json: JsonOption = False
) -> None:
    """Take back what the holdfast.toml of a folder was allowed. The next run asks again.

    \b
    holdfast env disallow --dir ~/my-project
    holdfast env disallow --repo https://git.example.com/owner/name.git
    """
    place = place_of_folder(_folder(directory)) if repo is None else place_of(_address(directory, repo))
    ensure_server(where)

    async def work(client: Client) -> bool:
        return await client.environments.disallow(place)

    removed = ask(where, work)
    if as_json:
        write_json({"place": place, "removed": removed})
    elif removed:
        write_field("disallowed", place)
    else:
        write_field("nothing", hint(f"nothing was allowed in {place}"))


def remove(name: NameArgument, yes: YesOption = False, *, where: Where, as_json: JsonOption = False) -> None:
    """Remove all versions of an environment, and its setups. Threads that used it can still be resumed."""
    parse_name(name)
    remove_named(
        name,
        f"environment {name} with all its versions",
        "holdfast env remove",
        where=where,
        yes=yes,
        as_json=as_json,
        check=lambda client: client.environments.get(name),
        remove=lambda client: client.environments.remove(name),
    )


def print_asks(asks: tuple[str, ...]) -> None:
    for number, each in enumerate(asks):
        note("asks for" if not number else "", each)


def _text_unless_named(reference: str | None, directory: Path | None) -> str | None:
    """Returns the text of the file in a folder, or None if an environment of the server is named."""
    if reference is None:
        return _found_text(directory)
    parse_reference(reference)
    return None


def _text_and_place(directory: Path | None, repo: str | None, where: Where, *, quiet: bool) -> tuple[str, str]:
    """Returns the text of the file in a folder or a repository, and where that is."""
    if repo is None:
        return _found_text(directory), place_of_folder(_folder(directory))
    from holdfast.cli.run.workspace.files import opened
    from holdfast.repositories.checkout import Checkout

    address = _address(directory, repo)
    with opened(address, home_or_default(where.home), quiet=quiet) as files:
        assert isinstance(files, Checkout)
        text = find_file(files.folder)
    if text is None:
        raise CommandError(
            f"there is no holdfast.toml in {repo}", next_step="name another repository or ref", exit=Exit.NOT_FOUND
        )
    return text, place_of(address)


def _address(directory: Path | None, repo: str) -> Address:
    from holdfast.api.errors import HoldfastError
    from holdfast.repositories.address import parse_address

    if directory is not None:
        raise usage_error("--dir and --repo exclude each other", "give only one of them")
    try:
        return parse_address(repo, Path.cwd())
    except HoldfastError as error:
        raise command_error(error) from None


def _allow_command(directory: Path | None, repo: str | None) -> str:
    return allow_command(_folder(directory) if repo is None else _address(directory, repo), Path.cwd())


def _folder(directory: Path | None) -> Path:
    return Path.cwd() if directory is None else directory.expanduser()


def _found_text(directory: Path | None) -> str:
    folder = _folder(directory)
    text = find_file(folder)
    if text is None:
        raise CommandError(
            f"there is no holdfast.toml in {folder}",
            next_step="name an environment of the server (holdfast env list), or a folder with --dir PATH",
            exit=Exit.NOT_FOUND,
        )
    return text


async def _require_consent(client: Client, text: str, place: str) -> None:
    """Raises unless the user has allowed the file: its repositories are cloned with the credentials of the user."""
    from holdfast.api.errors.environments import EnvironmentNotAllowed

    consent = await client.environments.consent(text, place=place)
    if consent.asks and not consent.granted:
        raise EnvironmentNotAllowed(f"the file asks for: {'; '.join(consent.asks)}, and nobody has allowed that")


def _print_saved(saved: EnvironmentRecord, *, as_json: bool) -> None:
    if as_json:
        write_json(saved.to_json())
        return
    write_field("environment", Cell(f"{saved.name}@{saved.version}", "bold"), Cell(f"  {saved.digest[:12]}", "dim"))
    write_field("next", hint(f'holdfast env check {saved.name}, then holdfast run "…" --env {saved.name}'))


def _age(at: int) -> str:
    return f"{describe_duration(time.time() - at / 1000)} ago"
