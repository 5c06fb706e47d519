"""`holdfast rewind`: takes a thread back to one of its turns, with its files, or undoes that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.run.fork import TurnArgument, split_turn
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json

if TYPE_CHECKING:
    from holdfast.api.run.checkpoints import Rewound
    from holdfast.client import Client


def rewind(
    thread: TurnArgument,
    undo: Annotated[bool, Option("--undo", help="Undo the latest rewind.")] = False,
    key: Annotated[
        str | None, Option("--key", metavar="TEXT", help="The same key on the same thread is the same rewind.")
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Take a thread back to the end of a turn: the conversation goes on from there, with the files as they were.

    What came after stays on the thread, and its files are saved: --undo brings both back.

    \b
    holdfast rewind t-1@3
    holdfast rewind t-1 --undo
    """
    name, at = split_turn(thread)
    if undo and at is not None:
        raise CommandError("--undo takes no turn", next_step=f"holdfast rewind {name} --undo", exit=Exit.USAGE)

    async def work(client: Client) -> Rewound:
        id = await find_thread(client, name)
        return await (client.forks.undo(id, key=key) if undo else client.forks.rewind(id, at, key=key))

    done = ask(where, work)
    if as_json:
        write_json(done.to_json())
        return
    write_field("undone" if undo else "rewound", Cell(done.thread, "bold"), f"  to the end of turn {done.turn}")
    if done.box is not None:
        write_field("box", done.box)
    note("next", hint(f'holdfast resume {done.thread} "…"'))
    if done.can_undo:
        note("undo", hint(f"holdfast rewind {done.thread} --undo"))
