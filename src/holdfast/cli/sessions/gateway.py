"""`holdfast session open`, `members`, `revoke` and `tunnel`: a session in the browser, and who may see it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

from holdfast.cli.errors import read_value, usage_error
from holdfast.cli.names import find_session
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.sessions.commands import SessionArgument
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
from holdfast.cli.terminal.durations import describe_duration, parse_duration

if TYPE_CHECKING:
    from holdfast.api.session.gateway import Link, Member, Tunnel
    from holdfast.client import Client

RoleName = Literal["owner", "collaborator", "viewer"]


def open_(
    session: SessionArgument,
    for_: Annotated[
        str | None, Option("--for", metavar="NAME", help="Who will open it, such as ada@example.com. Default: you.")
    ] = None,
    role: Annotated[
        RoleName | None, Option("--role", help="What they may do. Needed once for each person but you.")
    ] = None,
    expires: Annotated[
        str | None, Option("--expires", metavar="TIME", help="Until when the link can be opened. Default: 10m.")
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Print a link that opens a session, or the box of any thread, in a browser. In a pipe, print only the link.

    Whoever has the link can open it until it expires. A viewer watches terminals and reads pages of tunnels.

    \b
    holdfast session open t-3kd9
    holdfast session open t-3kd9 --for ada@example.com --role viewer --expires 1h
    """
    seconds = read_value(parse_duration, expires)

    async def work(client: Client) -> Link:
        from holdfast.api.session.gateway import LINK_SECONDS, Role

        id = await find_session(client, session)
        chosen = None if role is None else Role(role)
        return await client.gateway.link(id, for_, role=chosen, seconds=int(seconds or LINK_SECONDS))

    link = ask(where, work)
    if as_json:
        write_json(link.to_json())
        return
    if not is_terminal():
        write_line(link.url)
        return
    write_field("open", link.url)
    left = describe_duration(max(0.0, link.expires_at / 1000 - time.time()))
    write_field("for", link.subject, Cell(f"  {link.role}, can be opened for {left}", "dim"))


def members(
    session: SessionArgument,
    remove: Annotated[str | None, Option("--remove", metavar="NAME", help="Take the role of this person.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List who may open a session in a browser, or remove somebody. What they have open is closed."""

    async def work(client: Client) -> list[Member]:
        id = await find_session(client, session)
        if remove is not None:
            await client.gateway.remove_member(id, remove)
        return await client.gateway.members(id)

    found = ask(where, work)
    if as_json:
        write_json({"members": [each.to_json() for each in found]})
    elif not found:
        write_field("no members", hint(f"invite somebody with holdfast session open {session} --for NAME --role ROLE"))
    else:
        write_table(("name", "role"), [(Cell(each.subject, "bold"), str(each.role)) for each in found])


def revoke(
    session: SessionArgument,
    token: Annotated[
        str | None, Argument(metavar="TOKEN", help="Only this token, or this link. Default: all.", show_default=False)
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Make the links of a session invalid, and close what is open in browsers. Members keep their roles."""
    credential = None if token is None else token.rpartition("token=")[2]

    async def work(client: Client) -> str:
        id = await find_session(client, session)
        await client.gateway.revoke(id, credential)
        return id

    id = ask(where, work)
    if as_json:
        write_json({"id": id, "revoked": "all" if token is None else "one"})
    else:
        write_field(
            "revoked", f"all links of {id}" if token is None else "one link", Cell("  and what was open", "dim")
        )
        note("next", hint(f"holdfast session open {id}"))


def tunnel(
    session: SessionArgument,
    name: Annotated[
        str | None, Argument(metavar="NAME", help="Name of the tunnel. Default: list all.", show_default=False)
    ] = None,
    port: Annotated[
        int | None, Argument(metavar="PORT", help="Port in the box that it leads to.", show_default=False)
    ] = None,
    delete: Annotated[bool, Option("--delete", help="Delete the tunnel of this name.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List the tunnels of a session, add one, or delete one. A tunnel gives a port of its box a name and a URL.

    \b
    holdfast session tunnel t-3kd9 app 3000
    holdfast session tunnel t-3kd9
    holdfast session tunnel t-3kd9 app --delete
    """
    if name is not None and (port is None) != delete:
        raise usage_error(f"tunnel {name} needs a port, or --delete", f"holdfast session tunnel {session} {name} PORT")
    if name is None and delete:
        raise usage_error("--delete needs the name of a tunnel", f"holdfast session tunnel {session}")

    async def work(client: Client) -> list[Tunnel]:
        id = await find_session(client, session)
        if name is not None and port is not None:
            return [await client.gateway.register_tunnel(id, name, port)]
        if name is not None:
            await client.gateway.delete_tunnel(id, name)
        return await client.gateway.tunnels(id)

    found = ask(where, work)
    if as_json:
        write_json({"tunnels": [each.to_json() for each in found]})
    elif not found:
        write_field("no tunnels", hint(f"holdfast session tunnel {session} NAME PORT"))
    else:
        rows = [(Cell(each.name, "bold"), str(each.port), each.url or each.path) for each in found]
        write_table(("name", "port", "url"), rows)
