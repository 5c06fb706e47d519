"""`holdfast cost`: what models have cost."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

from holdfast.api.model.money import describe_calls
from holdfast.api.model.money import describe_spent as describe
from holdfast.cli.completion import complete_thread
from holdfast.cli.errors import CommandError, read_value
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_table
from holdfast.cli.terminal.durations import parse_duration

if TYPE_CHECKING:
    from holdfast.api.model.budgets import Cost, CostReport
    from holdfast.client import Client

CostKey = Literal["model", "run", "thread", "day"]


def cost(
    thread: Annotated[
        str | None,
        Argument(
            metavar="THREAD",
            help="Thread, or run. Default: everything on this server.",
            show_default=False,
            autocompletion=complete_thread,
        ),
    ] = None,
    tree: Annotated[bool, Option("--tree", help="Also count the threads below it.")] = False,
    since: Annotated[
        str | None, Option("--since", metavar="TIME", help="Only the last 90s, 30m, 2h, 1d.", show_default=False)
    ] = None,
    by: Annotated[CostKey, Option("--by", help="How to divide it.")] = "model",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Print what models have cost: a thread, a run, or everything on this server.

    The server counts the tokens of every answer. A cost is unknown if the price of the model was, when it answered: set
    it with holdfast model price, for the calls to come.

    \b
    holdfast cost t-1
    holdfast cost t-1 --tree --by thread
    holdfast cost --since 1d --by day
    """
    seconds = read_value(parse_duration, since)
    if tree and (thread is None or thread.startswith("r-")):
        raise CommandError("--tree needs a thread", next_step="holdfast cost THREAD --tree", exit=Exit.USAGE)

    async def work(client: Client) -> CostReport:
        begin = None if seconds is None else int((time.time() - seconds) * 1000)
        if thread is not None and thread.startswith("r-"):
            return await client.costs.report(run=thread, since=begin, by=by)
        known = None if thread is None else await find_thread(client, thread)
        if tree:
            return await client.costs.report(tree=known, since=begin, by=by)
        return await client.costs.report(thread=known, since=begin, by=by)

    report = ask(where, work)
    if as_json:
        write_json(report.to_json())
        return
    if not report.total.calls:
        write_field("no calls", hint("no model was used here"))
        return
    rows = [_row(each.key, each) for each in report.by]
    if len(rows) > 1:
        rows.append(_row("total", report.total))
    write_table((by, "calls", "input", "cached", "output", "cost"), rows)
    if report.total.unpriced:
        note("unknown", f"the cost of {describe_calls(report.total.unpriced)}, because the price is not known")
        write_field("next", hint("holdfast model price NAME/MODEL --input DOLLARS --output DOLLARS"))
    if report.total.estimated:
        note("estimated", f"{describe_calls(report.total.estimated)} without usage, by size")


def _row(key: str, cost: Cost) -> list[Cell | str]:
    return [
        Cell(key, "bold"),
        f"{cost.calls:,}",
        f"{cost.input:,}",
        f"{cost.cache_read + cost.cache_write:,}",
        f"{cost.output:,}",
        describe_spent(cost),
    ]


def describe_spent(cost: Cost | None) -> Cell | str:
    """What calls have cost, as far as it is known."""
    if cost is None or not cost.calls:
        return Cell("–", "dim")
    text = describe(cost.cost, cost.unpriced)
    return Cell(text, "yellow") if cost.unpriced else text
