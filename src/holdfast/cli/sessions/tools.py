"""`holdfast session tools` and `session call`: what the agent of a session can ask for, and the same for people."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_session
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.sessions.commands import SessionArgument
from holdfast.cli.terminal.console import Cell, write_json, write_table

if TYPE_CHECKING:
    from holdfast.api.tools.records import ToolRecord
    from holdfast.client import Client


def split_groups(text: str | None) -> tuple[str, ...]:
    """Returns the groups of tools that an option names. Raises `CommandError`."""
    from holdfast.api.tools.operation import ToolGroup

    names = _split(text, "group of tools", "--tools", (*ToolGroup, "all"))
    return tuple(ToolGroup) if "all" in names else names


def split_permissions(text: str | None) -> tuple[str, ...]:
    """Returns the permissions that an option names. Raises `CommandError`."""
    from holdfast.api.session.sessions import Permission

    return _split(text, "permission", "--ask", tuple(Permission))


def _split(text: str | None, what: str, option: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(each.strip() for each in (text or "").split(",") if each.strip()))
    if unknown := [each for each in names if each not in known]:
        raise CommandError(
            f"there is no {what} {unknown[0]!r}", next_step=f"{option} {','.join(known)}", exit=Exit.USAGE
        )
    return names


def tools(
    group: Annotated[str | None, Argument(metavar="GROUP", help="Only the tools of this group.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List what sessions can be allowed to ask for, by group.

    \b
    holdfast session new --agent pi --tools children,memory
    """

    async def work(client: Client) -> list[ToolRecord]:
        return await client.sessions.tools()

    chosen = split_groups(group)
    found = [each for each in ask(where, work) if group is None or each.group in chosen]
    if as_json:
        write_json({"tools": [each.to_json() for each in found]})
        return
    rows: list[list[Cell | str]] = [
        [Cell(each.name, "bold"), each.group.value, each.route, each.description.partition(". ")[0]] for each in found
    ]
    write_table(("tool", "group", "route in the box", "what it does"), rows)


def call(
    session: SessionArgument,
    tool: Annotated[str, Argument(metavar="TOOL", help="Name of the tool.")],
    given: Annotated[
        list[str] | None,
        Argument(metavar="[NAME=VALUE]…", help="Its input. A value that is JSON is taken as that.", show_default=False),
    ] = None,
    document: Annotated[
        str | None, Option("--input", metavar="JSON", help="The input as a JSON object. - reads standard input.")
    ] = None,
    *,
    where: Where,
) -> None:
    """Call a tool in the name of a session, as its agent would. Prints the result as JSON.

    \b
    holdfast session call t-3kd9 spawn_child task="look at the tests" workspace=tests
    holdfast session call t-3kd9 child_sessions
    """
    import sys

    input = _object(sys.stdin.read() if document == "-" else document or "{}")
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals:
            raise CommandError(f"{each!r} is not NAME=VALUE", next_step="write NAME=VALUE", exit=Exit.USAGE)
        input[name] = _value(value)

    async def work(client: Client) -> dict[str, Any]:
        return await client.sessions.call_tool(await find_session(client, session), tool, input)

    write_json(ask(where, work))


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"--input is not JSON: {error}", next_step="--input '{}'", exit=Exit.USAGE) from None
    if not isinstance(value, dict):
        raise CommandError("--input is not a JSON object", next_step="--input '{}'", exit=Exit.USAGE)
    return value


def _value(text: str) -> Any:
    """Returns what a text stands for: JSON, unless it is a plain word. Numbers stay texts where that loses nothing."""
    if text[:1] in ("{", "[") or text in ("true", "false", "null") or text.lstrip("-").isdigit():
        try:
            return json.loads(text)
        except ValueError:
            return text
    return text
