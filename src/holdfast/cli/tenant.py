"""`holdfast tenant`: the tenants of a server, for its operator."""

from __future__ import annotations

import time
from typing import Annotated

from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument
from holdfast.cli.session import connect
from holdfast.cli.terminal.confirmation import YesOption, confirm_end
from holdfast.cli.terminal.console import Cell, hint, is_terminal, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration

TenantArgument = Annotated[str, Argument(metavar="TENANT", help="Name of the tenant.", show_default=False)]


def new(name: TenantArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Create a tenant, and print the API key of its first owner, only this once. In a pipe, print only the key."""
    with connect(where) as client:
        created = client.tenants.create(name)
    if as_json:
        write_json(created.to_json())
    elif is_terminal():
        write_field("tenant", created.tenant.name)
        _write_key(created.key.secret)
    else:
        write_line(created.key.secret)


def key(
    name: TenantArgument,
    key_name: Annotated[str, Argument(metavar="NAME", help="What the key is for.", show_default=False)],
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create an API key of a tenant, for an owner who has lost theirs. In a pipe, print only the key."""
    with connect(where) as client:
        created = client.tenants.create_key(name, key_name)
    if as_json:
        write_json(created.to_json())
    elif is_terminal():
        _write_key(created.secret)
    else:
        write_line(created.secret)


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List the tenants of the server, beside the default one."""
    with connect(where) as client:
        tenants = client.tenants.list()
    if as_json:
        write_json({"tenants": [tenant.to_json() for tenant in tenants]})
        return
    if not tenants:
        write_field("no tenants", hint("create one with holdfast tenant new NAME"))
        return
    now = time.time()
    rows = [(tenant.name, f"{describe_duration(now - tenant.created_at / 1000)} ago") for tenant in tenants]
    write_table(("name", "created"), rows)


def remove(name: TenantArgument, yes: YesOption = False, *, where: Where, as_json: JsonOption = False) -> None:
    """Remove a tenant with its threads, keys and settings, permanently. Delete its boxes first."""
    with connect(where) as client:
        confirm_end("remove", f"tenant {name} with all its threads", f"holdfast tenant remove {name}", yes=yes)
        client.tenants.remove(name)
    if as_json:
        write_json({"name": name, "removed": True})
    else:
        write_field("removed", name)


def _write_key(secret: str) -> None:
    write_field("api key", Cell(secret, "bold"))
    write_field("", Cell("of an owner of the tenant; shown only this once: save it", "dim"))
