"""How commands remove something that a server has by name: it must be there, and its user must agree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from holdfast.cli.options import Where
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import confirm_end
from holdfast.cli.terminal.console import write_field, write_json

if TYPE_CHECKING:
    from holdfast.client import Client

Ask = Callable[["Client"], Awaitable[object]]


def remove_named(
    name: str,
    what: str,
    command: str,
    *,
    where: Where,
    yes: bool,
    as_json: bool,
    check: Ask,
    remove: Ask,
    key: str = "name",
) -> None:
    """Remove something, and print that. `what` says what goes, for the question; `command` is that of its user.

    `check` raises if there is no such thing, before anybody is asked. `key` is what the output calls the name.
    """
    ask(where, check)
    confirm_end("remove", what, f"{command} {name}", yes=yes)
    ask(where, remove)
    if as_json:
        write_json({key: name, "removed": True})
    else:
        write_field("removed", name)
