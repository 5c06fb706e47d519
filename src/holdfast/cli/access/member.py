"""`holdfast member`: the members of your tenant."""

from __future__ import annotations

import time
from typing import Annotated

from holdfast.api.access.tenants import TenantRole
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import connect
from holdfast.cli.terminal.confirmation import YesOption, confirm_end
from holdfast.cli.terminal.console import hint, write_field, write_json, write_table
from holdfast.cli.terminal.durations import describe_duration

NameArgument = Annotated[
    str, Argument(metavar="NAME", help="Name of the member, such as an address.", show_default=False)
]


def add(
    name: NameArgument,
    role: Annotated[TenantRole, Option("--role", help="What they may do.")] = TenantRole.MEMBER,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Add a member. A key of theirs: holdfast key create NAME --member MEMBER."""
    with connect(where) as client:
        if any(member.name == name for member in client.members.list()):
            raise CommandError(
                f"{name} is a member already",
                next_step=f"change the role with holdfast member role {name} ROLE",
                exit=Exit.CONFLICT,
            )
        member = client.members.put(name, role)
    if as_json:
        write_json(member.to_json())
    else:
        write_field("added", f"{member.name}  {member.role.value}")
        write_field("next", hint(f"holdfast key create NAME --member {member.name}"))


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List the members of your tenant."""
    with connect(where) as client:
        members = client.members.list()
    if as_json:
        write_json({"members": [member.to_json() for member in members]})
        return
    if not members:
        write_field("no members", hint("add one with holdfast member add NAME"))
        return
    now = time.time()
    rows = [
        (member.name, member.role.value, f"{describe_duration(now - member.created_at / 1000)} ago")
        for member in members
    ]
    write_table(("name", "role", "added"), rows)


def role(
    name: NameArgument,
    role: Annotated[TenantRole, Argument(metavar="ROLE", help="owner, member or viewer.", show_default=False)],
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Change the role of a member, also for the keys that they have."""
    with connect(where) as client:
        if all(member.name != name for member in client.members.list()):
            raise CommandError(
                f"there is no member {name}",
                next_step=f"add them with holdfast member add {name}",
                exit=Exit.NOT_FOUND,
            )
        member = client.members.put(name, role)
    if as_json:
        write_json(member.to_json())
    else:
        write_field("changed", f"{member.name}  {member.role.value}")


def remove(name: NameArgument, yes: YesOption = False, *, where: Where, as_json: JsonOption = False) -> None:
    """Remove a member, and revoke all their keys."""
    with connect(where) as client:
        confirm_end("remove", f"member {name}", f"holdfast member remove {name}", yes=yes)
        client.members.remove(name)
    if as_json:
        write_json({"name": name, "removed": True})
    else:
        write_field("removed", name)
