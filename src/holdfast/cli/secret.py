"""`holdfast secret`: values that boxes use without seeing them. They come from standard input or a hidden prompt."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Final, Literal

from holdfast.cli.completion import complete_secret
from holdfast.cli.errors import CommandError, usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.removal import remove_named
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import YesOption
from holdfast.cli.terminal.console import Cell, hint, is_terminal, note, write_field, write_json, write_table
from holdfast.cli.terminal.durations import describe_duration

if TYPE_CHECKING:
    from holdfast.api.secrets import Binding, SecretEvent, SecretRecord
    from holdfast.client import Client

_MAX_VALUE: Final = 65_536
_EVENTS: Final = 20

NameArgument = Annotated[
    str,
    Argument(
        metavar="NAME",
        help="Name of the secret, and of its variable in boxes.",
        show_default=False,
        autocompletion=complete_secret,
    ),
]


def set_(
    name: NameArgument,
    host: Annotated[
        list[str] | None,
        Option("--host", metavar="HOST", help="Host that it may be sent to. Can be given several times."),
    ] = None,
    header: Annotated[
        str | None, Option("--header", metavar="NAME", help="Header that it is put into. Default: Authorization.")
    ] = None,
    format: Annotated[
        str | None, Option("--format", metavar="TEXT", help="The header's content. {} stands for the value.")
    ] = None,
    query: Annotated[
        str | None, Option("--query", metavar="NAME", help="Put it into this query parameter instead of a header.")
    ] = None,
    basic: Annotated[
        str | None, Option("--basic", metavar="USER", help="Use it as the password of basic authentication.")
    ] = None,
    git: Annotated[
        list[str] | None,
        Option(
            "--git",
            metavar="HOST/OWNER/REPO",
            help="Repository that git in boxes may use it for. Can be given several times.",
        ),
    ] = None,
    expose: Annotated[
        Literal["env", "file"] | None,
        Option("--expose", help="Put the value itself into boxes. Programs there can read and send it."),
    ] = None,
    placeholder: Annotated[
        str | None,
        Option("--placeholder", metavar="TEXT", help="What boxes see instead, if their programs check its form."),
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Store a secret, and say where it may go. The value is read from standard input, or asked for.

    The egress proxy puts it into requests of boxes to that host. Boxes see only a placeholder.

    \b
    holdfast secret set STRIPE_KEY --host api.stripe.com < key.txt
    holdfast secret set MAPS_KEY --host maps.example.com --query key
    holdfast secret set GITHUB_TOKEN --git github.com/acme/app
    """
    bindings = read_bindings(host, header, format, query, basic, git)
    if not bindings and expose is None:
        raise usage_error(
            f"{name} would go nowhere",
            "bind it to a host with --host HOST, or put it into boxes with --expose env or --expose file",
        )
    value = read_secret(name, keep_lines=expose == "file")

    async def work(client: Client) -> SecretRecord:
        from holdfast.api.secrets import Exposure

        exposure = None if expose is None else Exposure(expose)
        return await client.secrets.set(name, value, bindings, expose=exposure, placeholder=placeholder)

    made = ask(where, work)
    if as_json:
        write_json(made.to_json())
        return
    _print(made)
    write_field("next", hint(f"holdfast run … --secret {made.name}"))


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List secrets, and where they may go. Values are not shown."""

    async def work(client: Client) -> list[SecretRecord]:
        return await client.secrets.list()

    found = ask(where, work)
    if as_json:
        write_json({"secrets": [each.to_json() for each in found]})
        return
    if not found:
        write_field("no secrets", hint("store one with holdfast secret set NAME --host HOST"))
        return
    now = time.time()
    rows = [
        (
            Cell(each.name, "bold"),
            f"{each.version}",
            f"{describe_duration(now - each.changed_at / 1000)} ago",
            each.changed_by,
            Cell(f"IN BOXES, as {_exposure(each)}", "yellow") if each.expose else Cell("no", "dim"),
            Cell(", ".join(map(describe_binding, each.bindings)) or "—", "dim"),
        )
        for each in found
    ]
    write_table(("name", "version", "changed", "by", "exposed", "goes to"), rows)


def show(name: NameArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Show where a secret may go, who changed it, and which boxes used it. Its value is not shown."""

    async def work(client: Client) -> tuple[SecretRecord | None, tuple[SecretEvent, ...]]:
        from holdfast.api.errors import NotFound

        events = await client.secrets.events(name, limit=_EVENTS)
        try:
            return await client.secrets.get(name), events
        except NotFound:
            return None, events  # it was removed

    record, events = ask(where, work)
    if as_json:
        document = None if record is None else record.to_json()
        write_json({"secret": document, "events": [each.to_json() for each in events]})
        return
    if record is None:
        write_field("secret", Cell(name, "bold"), Cell("  removed", "yellow"))
    else:
        _print(record)
    now = time.time()
    rows = [
        (
            f"{describe_duration(now - each.at / 1000)} ago",
            Cell(each.action.value, "yellow" if each.action in ("refused", "exposed") else "green"),
            f"{each.version}",
            each.by or each.box,
            Cell(" ".join(part for part in (each.host, each.thread, each.detail) if part), "dim"),
        )
        for each in events
    ]
    write_table(("when", "what", "version", "by", "where"), rows)


def rotate(name: NameArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Give a secret a new value, from standard input or a prompt. Boxes use it at once; the old value is gone."""
    value = read_secret(name, keep_lines=True)

    async def work(client: Client) -> SecretRecord:
        from holdfast.api.secrets import Exposure

        before = await client.secrets.get(name)
        kept = value if before.expose is Exposure.FILE else value.strip()
        return await client.secrets.rotate(name, kept)

    made = ask(where, work)
    if as_json:
        write_json(made.to_json())
    else:
        write_field("rotated", Cell(made.name, "bold"), Cell(f"  version {made.version}", "dim"))


def remove(name: NameArgument, yes: YesOption = False, *, where: Where, as_json: JsonOption = False) -> None:
    """Remove a secret. Boxes can no longer use it."""
    remove_named(
        name,
        f"secret {name}",
        "holdfast secret remove",
        where=where,
        yes=yes,
        as_json=as_json,
        check=lambda client: client.secrets.get(name),
        remove=lambda client: client.secrets.remove(name),
    )


# --- reading ---


def read_bindings(
    hosts: list[str] | None,
    header: str | None,
    format: str | None,
    query: str | None,
    basic: str | None,
    git: list[str] | None,
) -> tuple[Binding, ...]:
    from holdfast.api.secrets import Binding, Placement

    if sum(each is not None for each in (header or format, query, basic)) > 1:
        raise usage_error("--header, --query and --basic exclude each other", "store one secret for each")
    if not hosts and (header or format or query or basic):
        raise usage_error("the host is missing", "add --host HOST")
    bindings = []
    for host in hosts or ():
        if query is not None:
            bindings.append(Binding(host=host, placement=Placement.QUERY, name=query))
        elif basic is not None:
            bindings.append(Binding(host=host, placement=Placement.BASIC, name=basic))
        else:
            usual = "Bearer {}" if header is None else "{}"
            bindings.append(Binding(host=host, name=header or "Authorization", format=format or usual))
    repositories: dict[str, list[str]] = {}
    for each in git or ():
        place, slash, path = each.removeprefix("https://").partition("/")
        if not slash or not path:
            raise usage_error(f"{each!r} is not a repository", "write --git github.com/acme/app")
        repositories.setdefault(place, []).append(path)
    bindings += (
        Binding(host=place, placement=Placement.GIT, repositories=tuple(paths)) for place, paths in repositories.items()
    )
    return tuple(bindings)


def read_secret(name: str, *, keep_lines: bool = False) -> str:
    """Read the value of a secret from standard input, or ask for it on a terminal. It is never an argument."""
    if sys.stdin.isatty():
        if not is_terminal():
            raise CommandError(
                f"there is no terminal to ask for {name}",
                next_step=f"holdfast secret set {name} … < FILE",
                exit=Exit.USAGE,
            )
        import typer  # here, because it takes long

        try:
            value: str = typer.prompt(f"  {name}", hide_input=True, default="", show_default=False)
        except typer.Abort:
            raise KeyboardInterrupt from None
    else:
        value = sys.stdin.read(_MAX_VALUE + 1)
    if not keep_lines:
        value = value.strip()
    if not value.strip():
        raise CommandError(
            f"there is no value for {name}", next_step=f"holdfast secret set {name} … < FILE", exit=Exit.USAGE
        )
    return value


# --- describing ---


def describe_binding(binding: Binding) -> str:
    match binding.placement:
        case "header":
            return f"{binding.host} ({binding.name})"
        case "query":
            return f"{binding.host} (?{binding.name}=)"
        case "basic":
            return f"{binding.host} (basic, {binding.name})"
        case "placeholder":
            return f"{binding.host} (where the placeholder is)"
    return ", ".join(f"git {binding.host}/{each}" for each in binding.repositories)


def _exposure(record: SecretRecord) -> str:
    return "a file" if record.expose == "file" else "a variable"


def _print(record: SecretRecord) -> None:
    write_field("secret", Cell(record.name, "bold"), Cell(f"  version {record.version}", "dim"))
    for each in record.bindings:
        write_field("goes to", describe_binding(each))
    if record.expose is None:
        write_field("boxes see", f"{record.name}={record.placeholder}")
    else:
        note("careful", f"boxes get the value itself, as {_exposure(record)}: programs there can read and send it")
