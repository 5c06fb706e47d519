"""`holdfast inbox`: what the agents of sessions tell people, and how to answer."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.options import JsonOption, LimitOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration
from holdfast.visible_text import visible

if TYPE_CHECKING:
    from holdfast.api.session.inbox import InboxMessage, SentReply
    from holdfast.client import Client

MessageArgument = Annotated[str, Argument(metavar="MESSAGE", help="Id of the message.", show_default=False)]
_SHOWN: Final = 70
_APPROVAL: Final = re.compile(r"Execution ([a-z]{1,3}-[0-9a-z]{1,64}) of workflow ")
"""How the message of an execution begins that waits for approval (`holdfast.sessions.workflows.engine`)."""


def list_(
    to: Annotated[str | None, Option("--to", metavar="NAME", help="Only messages to this person.")] = None,
    everything: Annotated[bool, Option("--all", help="Also messages that were read.")] = False,
    limit: LimitOption = 50,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List messages of sessions to people, oldest first.

    \b
    holdfast inbox list --to ada
    """

    async def work(client: Client) -> list[InboxMessage]:
        return await client.inbox.list(to=to, unread=not everything, limit=limit)

    found = ask(where, work)
    if as_json:
        write_json({"messages": [each.to_json() for each in found]})
    elif not found:
        write_field("no messages", hint("agents write them if their session has --tools mailbox"))
    else:
        now = time.time()
        write_table(("message", "to", "type", "from", "age", "text"), [_row(each, now) for each in found])


def show(message: MessageArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Show a message, and mark it as read."""

    async def work(client: Client) -> InboxMessage:
        return await client.inbox.read(message)

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
        return
    write_field("message", Cell(found.id, "bold"), Cell(f"  {found.type}", "dim"))
    write_field("from", found.session or found.person or "")
    if found.context_session is not None:
        write_field("about", found.context_session)
    for line in found.content.splitlines():
        write_line(visible(line))
    if found.type.value == "approval" and (asks := _APPROVAL.match(found.content)) is not None:
        note("next", hint(f"holdfast workflow show {asks[1]}"))  # an agent may have written the message itself
        note("", hint(f"holdfast workflow approve {asks[1]}"))
    elif found.session is not None:
        note("next", hint(f'holdfast inbox reply {found.id} "your answer"'))


def reply(
    message: MessageArgument,
    text: Annotated[str, Argument(metavar="TEXT", help="The answer.")],
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Answer a message. The session that wrote it gets the answer as a prompt, and wakes up for it."""

    async def work(client: Client) -> SentReply:
        return await client.inbox.reply(message, text)

    sent = ask(where, work)
    if as_json:
        write_json(sent.to_json())
    else:
        write_field("answered", sent.session)
        note("next", hint(f"holdfast attach {sent.session}"))


def delete(message: MessageArgument, *, where: Where) -> None:
    """Delete a message."""

    async def work(client: Client) -> None:
        await client.inbox.delete(message)

    ask(where, work)
    write_field("deleted", message)


def _row(each: InboxMessage, now: float) -> list[Cell | str]:
    line = visible(each.content.strip().partition("\n")[0])
    return [
        Cell(each.id, "bold"),
        each.to,
        each.type.value,
        each.session or each.person or "",
        f"{describe_duration(max(0.0, now - each.created_at / 1000))} ago",
        line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…",
    ]
