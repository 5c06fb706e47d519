"""`holdfast key`: the API keys of a server."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

from holdfast.api.access.keys import Key
from holdfast.api.access.tenants import TenantRole
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import connect
from holdfast.cli.terminal.confirmation import YesOption, confirm_end
from holdfast.cli.terminal.console import Cell, hint, is_terminal, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration


def create(
    name: Annotated[str, Argument(metavar="NAME", help="What the key is for.", show_default=False)],
    role: Annotated[TenantRole, Option("--role", help="What it may do at most.")] = TenantRole.OWNER,
    member: Annotated[str | None, Option("--member", metavar="MEMBER", help="Whose key it is.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create an API key. It is shown only this once. In a pipe, print only the key."""
    with connect(where) as client:
        key = client.keys.create(name, role=role.value, member=member)
    if as_json:
        write_json(key.to_json())
    elif is_terminal():
        write_field("api key", Cell(key.secret or "", "bold"))
        write_field("", Cell("shown only this once: save it", "dim"))
        write_field("next", hint(f"holdfast key revoke {key.id}"), Cell("   when it is no longer needed", "dim"))
    else:
        write_line(key.secret or "")


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List API keys, including revoked ones."""
    with connect(where) as client:
        keys = client.keys.list()
    if as_json:
        write_json({"keys": [key.to_json() for key in keys]})
        return
    if not keys:
        write_field("no keys", hint("create one with holdfast key create NAME"))
        return
    now = time.time()
    rows = [
        (
            key.id,
            Cell("in use", "green") if key.revoked_at is None else Cell("revoked", "dim"),
            f"{describe_duration(now - key.created_at / 1000)} ago",
            key.role,
            key.name if key.member is None else f"{key.name} ({key.member})",
        )
        for key in keys
    ]
    write_table(("id", "state", "created", "role", "name"), rows)


def _check_active(id: str, keys: Sequence[Key]) -> None:
    """Raise an error if no active key has this id. Who gave a name is told the id, if only one key has that name."""
    active = [key for key in keys if key.revoked_at is None]
    if id in [key.id for key in active]:
        return
    named = [key.id for key in active if key.name == id]
    if len(named) == 1:
        raise CommandError(
            f"{id} is the name of an API key, and not its id",
            next_step=f"holdfast key revoke {named[0]}",
            exit=Exit.NOT_FOUND,
        )
    raise CommandError(
        f"there is no active API key {id}",
        next_step="list keys with holdfast key list",
        exit=Exit.NOT_FOUND,
    )


def revoke(
    id: Annotated[str, Argument(metavar="ID", help="Id of the key (not the key itself).", show_default=False)],
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Revoke a key. It stops working at once, permanently."""
    with connect(where) as client:
        if not yes:
            _check_active(id, client.keys.list())
        confirm_end("revoke", f"key {id}", f"holdfast key revoke {id}", yes=yes)
        client.keys.revoke(id)
    if as_json:
        write_json({"id": id, "revoked": True})
    else:
        write_field("revoked", id)
