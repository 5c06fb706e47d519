"""`holdfast thread turns`: the turns of a thread, and which of them can be forked or rewound to."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, ThreadArgument, Where
from holdfast.cli.session import ask
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_table
from holdfast.cli.terminal.durations import describe_duration
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.api.run.checkpoints import TurnInfo
    from holdfast.client import Client


def turns(
    id: ThreadArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List the turns of a thread, and which of them can be forked or rewound to."""

    async def work(client: Client) -> tuple[TurnInfo, ...]:
        return await client.forks.turns(await find_thread(client, id))

    found = ask(where, work)
    if as_json:
        write_json({"turns": [each.to_json() for each in found]})
        return
    if not found:
        write_field("no turns", hint(f'begin with holdfast resume {id} "…" --agent NAME'))
        return
    now = time.time()
    write_table(("turn", "agent", "status", "ended", "checkpoint"), [_row(each, now) for each in found])
    if saved := [each for each in found if each.snapshot is not None and not each.rewound]:
        note("next", hint(f"holdfast fork {id}@{saved[-1].turn}"))


def _row(turn: TurnInfo, now: float) -> tuple[Cell | str, ...]:
    ended = "" if turn.ended_at is None else f"{describe_duration(max(0.0, now - turn.ended_at / 1000))} ago"
    checkpoint = Cell(plain(turn.why or "in progress"), "dim")
    if turn.snapshot is not None:
        checkpoint = Cell(turn.snapshot if turn.size is None else f"{turn.snapshot}  {describe_size(turn.size)}")
    status = f"{turn.status.value}, rewound" if turn.rewound else turn.status.value
    style = "dim" if turn.rewound else ""
    return (Cell(str(turn.turn), style or "bold"), Cell(turn.agent, style), Cell(status, style), ended, checkpoint)
