"""`holdfast share`: links by which anybody can read a thread."""

from __future__ import annotations

import time
from typing import Annotated

from holdfast.cli.names import find_thread_now
from holdfast.cli.options import JsonOption, ThreadArgument, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import connect
from holdfast.cli.terminal.console import Cell, hint, is_terminal, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_time_left


def new(
    id: ThreadArgument,
    days: Annotated[float, Option("--days", metavar="N", min=0.01, max=90, help="How long the link works.")] = 7,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create a link by which anybody can read a thread as a page, until it expires or is revoked.

    A thread contains what people and agents wrote, and what tools printed. Look at it before you pass the link on.
    In a pipe, print only the link.
    """
    with connect(where) as client:
        thread = find_thread_now(client, id)
        created = client.shares.create(thread, seconds=max(60, round(days * 24 * 3600)))
        url = client.url.rstrip("/") + created.path
    if as_json:
        write_json({**created.share.to_json(), "url": url})
    elif is_terminal():
        write_field("link", Cell(url, "bold"))
        write_field("", Cell(f"anybody who has it can read the thread, for {days:g} days", "dim"))
        write_field("next", hint(f"holdfast share revoke {thread} {created.share.id}"))
    else:
        write_line(url)


def list_(id: ThreadArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """List the shares of a thread."""
    with connect(where) as client:
        shares = client.shares.list(find_thread_now(client, id))
    if as_json:
        write_json({"shares": [share.to_json() for share in shares]})
        return
    if not shares:
        write_field("no shares", hint(f"create one with holdfast share new {id}"))
        return
    now = time.time()
    rows = [(each.id, each.created_by, f"in {describe_time_left(each.expires_at / 1000 - now)}") for each in shares]
    write_table(("id", "by", "expires"), rows)


def revoke(
    id: ThreadArgument,
    share: Annotated[str, Argument(metavar="SHARE", help="Id of the share.", show_default=False)],
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Revoke a share. Its link stops working at once."""
    with connect(where) as client:
        client.shares.revoke(find_thread_now(client, id), share)
    if as_json:
        write_json({"id": share, "revoked": True})
    else:
        write_field("revoked", share)
