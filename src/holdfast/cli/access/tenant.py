"""`holdfast tenant`: the tenants of a server, for its operator."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated, Any

from holdfast.api.access.tenants import TenantQuotas
from holdfast.cli.errors import read_value
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import connect
from holdfast.cli.terminal.confirmation import YesOption, confirm_end
from holdfast.cli.terminal.console import Cell, hint, is_terminal, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration
from holdfast.cli.terminal.sizes import describe_size, parse_size

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


def limit(
    name: TenantArgument,
    requests: Annotated[float | None, Option("--requests", metavar="N", help="Requests a second.")] = None,
    boxes: Annotated[int | None, Option("--boxes", metavar="N", help="Boxes.")] = None,
    runs: Annotated[int | None, Option("--runs", metavar="N", help="Runs at once.")] = None,
    storage: Annotated[
        str | None, Option("--storage", metavar="SIZE", help="Size of the database, such as 5G.")
    ] = None,
    spend: Annotated[float | None, Option("--spend", metavar="DOLLARS", help="What models may cost in a day.")] = None,
    none: Annotated[bool, Option("--none", help="Remove all limits first.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show what a tenant may use at most, or set some of it."""
    size = read_value(parse_size, storage)
    given: dict[str, Any] = {"requests": requests, "boxes": boxes, "runs": runs, "storage": size, "spend": spend}
    chosen = {key: value for key, value in given.items() if value is not None}
    with connect(where) as client:
        quotas = client.tenants.quotas(name)
        if none or chosen:
            quotas = client.tenants.limit(name, replace(TenantQuotas() if none else quotas, **chosen))
    if as_json:
        write_json(quotas.to_json())
        return
    for key, value in quotas.to_json().items():
        write_field(key, "no limit" if value is None else _describe_quota(key, value))


def _describe_quota(name: str, value: float) -> str:
    match name:
        case "storage":
            return describe_size(int(value))
        case "spend":
            return f"${value:,.2f} a day"
        case "requests":
            return f"{value:g} a second"
        case "runs":
            return f"{value:g} at once"
    return f"{value:g}"


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
