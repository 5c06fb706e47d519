"""`holdfast budget`: the most that models may cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.api.model.budgets import Budget, BudgetScope
from holdfast.api.model.money import describe_cost, describe_in_full
from holdfast.cli.completion import complete_thread
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, write_field, write_json, write_table

if TYPE_CHECKING:
    from holdfast.api.model.budgets import BudgetRecord
    from holdfast.client import Client

ThreadOption = Annotated[
    str | None,
    Argument(metavar="THREAD", help="Thread.", show_default=False, autocompletion=complete_thread),
]
TreeOption = Annotated[bool, Option("--tree", help="The thread and all threads below it.")]
DayOption = Annotated[bool, Option("--day", help="Everything on this server, each day (UTC).")]


def set_(
    thread: ThreadOption = None,
    cost: Annotated[
        float | None, Option("--cost", metavar="DOLLARS", help="At most this much.", show_default=False)
    ] = None,
    tokens: Annotated[
        int | None, Option("--tokens", metavar="N", help="At most this many tokens.", show_default=False)
    ] = None,
    tree: TreeOption = False,
    day: DayOption = False,
    warn_at: Annotated[float, Option("--warn-at", metavar="SHARE", help="Tell the thread at this share of it.")] = 0.8,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Set the budget of a thread, of a tree of threads, or of each day. A run gets its own with holdfast run --budget.

    When a budget is used up, the model refuses, and the agent reports that. Calls that have begun are not cut off.

    \b
    holdfast budget set t-1 --cost 5
    holdfast budget set t-1 --tree --cost 20
    holdfast budget set --day --cost 100 --tokens 50000000
    """
    scope = _scope(thread, tree=tree, day=day)
    if cost is None and tokens is None:
        raise CommandError("a budget needs --cost or --tokens", next_step="holdfast budget set --help", exit=Exit.USAGE)

    async def work(client: Client) -> BudgetRecord:
        subject = "" if thread is None else await find_thread(client, thread)
        return await client.costs.set_budget(scope, subject, Budget(cost=cost, tokens=tokens, warn_at=warn_at))

    made = ask(where, work)
    if as_json:
        write_json(made.to_json())
    else:
        write_field("budget", Cell(_name(made), "bold"), Cell(f"  {_most(made)}"))
        write_field("spent", _spent(made))


def list_(*, where: Where, as_json: JsonOption = False) -> None:
    """List budgets, and what was spent of each."""

    async def work(client: Client) -> list[BudgetRecord]:
        return await client.costs.budgets()

    found = ask(where, work)
    if as_json:
        write_json({"budgets": [each.to_json() for each in found]})
    elif not found:
        write_field("no budgets", hint("set one with holdfast budget set THREAD --cost DOLLARS"))
    else:
        rows: list[list[Cell | str]] = [[Cell(_name(each), "bold"), _most(each), _spent(each)] for each in found]
        write_table(("budget", "most", "spent"), rows)


def remove(
    thread: ThreadOption = None,
    tree: TreeOption = False,
    day: DayOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Remove a budget."""
    scope = _scope(thread, tree=tree, day=day)

    async def work(client: Client) -> None:
        subject = "" if thread is None else await find_thread(client, thread)
        await client.costs.remove_budget(scope, subject)

    ask(where, work)
    if as_json:
        write_json({"scope": scope.value, "subject": thread or "", "removed": True})
    else:
        write_field("removed", f"budget of {scope.value} {thread or ''}".rstrip())


def _scope(thread: str | None, *, tree: bool, day: bool) -> BudgetScope:
    if day == (thread is not None) or (day and tree):
        raise CommandError(
            "a budget is for a thread, for a thread and those below it (--tree), or for each day (--day)",
            next_step="holdfast budget set --help",
            exit=Exit.USAGE,
        )
    return BudgetScope.DAY if day else BudgetScope.TREE if tree else BudgetScope.THREAD


def _name(record: BudgetRecord) -> str:
    return f"{record.scope.value} {record.subject}".rstrip()


def _most(record: BudgetRecord) -> str:
    budget = record.budget
    cost = [] if budget.cost is None else [describe_cost(budget.cost)]
    tokens = [] if budget.tokens is None else [f"{budget.tokens:,} tokens"]
    return ", ".join((*cost, *tokens))


def _spent(record: BudgetRecord) -> str:
    return f"{describe_in_full(record.cost, record.unpriced)}; {record.tokens:,} tokens"
