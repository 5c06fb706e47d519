"""`holdfast runs`: lists runs of all threads."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final, Literal

from holdfast.cli.completion import complete_agent, complete_thread
from holdfast.cli.model.cost import describe_spent
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, LimitOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.run.status import describe_status
from holdfast.cli.session import ask
from holdfast.cli.terminal.agent_text import describe_time
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration

if TYPE_CHECKING:
    from holdfast.client import Client, RunInfo

RunStatusName = Literal["running", "completed", "failed", "cancelled", "orphaned"]
_STYLES: Final = {"running": "green", "failed": "red", "orphaned": "red", "cancelled": "yellow"}


def runs(
    thread: Annotated[
        str | None, Option(metavar="ID", help="Only runs of this thread.", autocompletion=complete_thread)
    ] = None,
    status: Annotated[RunStatusName | None, Option(help="Only runs with this status.")] = None,
    agent: Annotated[
        str | None, Option(metavar="NAME", help="Only runs of this agent.", autocompletion=complete_agent)
    ] = None,
    limit: LimitOption = 50,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the ids of their threads.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first.

    \b
    holdfast runs --status running
    holdfast runs --status failed --agent codex
    """

    async def work(client: Client) -> list[RunInfo]:
        known = None if thread is None else await find_thread(client, thread)
        return [each async for each in client.runs.list(thread=known, status=status, agent=agent, limit=limit)]

    found = ask(where, work)
    if as_json:
        write_json({"runs": [each.to_json() for each in found]})
    elif quiet:
        for id in dict.fromkeys(each.thread for each in found):
            write_line(id)
    elif not found:
        write_field("no runs", hint('start one with holdfast run "what to do" --agent NAME'))
    else:
        now = time.time()
        write_table(
            ("thread", "status", "agent", "model", "began", "took", "cost"), [_row(each, now) for each in found]
        )
        if len(found) == limit:
            note("more", hint(f"there may be more than these {limit}: holdfast runs --limit {limit * 10}"))


def _row(run: RunInfo, now: float) -> list[Cell | str]:
    ended = now * 1000 if run.ended_at is None else run.ended_at
    return [
        Cell(run.thread, "bold"),
        Cell(describe_status(run.status, run, now), _STYLES.get(run.status, "")),
        run.agent,
        run.model,
        f"{describe_duration(now - run.started_at / 1000)} ago",
        describe_time(max(0, ended - run.started_at)),
        describe_spent(run.cost),
    ]
