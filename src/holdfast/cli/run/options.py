"""Options that the commands of runs share: threads, models and time limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.cli.completion import complete_model, complete_thread
from holdfast.cli.parsing.parameters import Argument, Option

if TYPE_CHECKING:
    from holdfast.api.model.budgets import Budget

RunThreadArgument = Annotated[
    str,
    Argument(
        metavar="THREAD",
        help="Id of the thread, or the beginning of it.",
        show_default=False,
        autocompletion=complete_thread,
    ),
]
ModelOption = Annotated[
    str | None,
    Option(
        "--model",
        metavar="NAME[/MODEL][,…]",
        help="Model, from holdfast model list. Several: each is used if those before it fail. Default: the only one.",
        autocompletion=complete_model,
    ),
]

CheckpointsOption = Annotated[
    str | None,
    Option(
        "--checkpoints",
        metavar="POLICY",
        help="Save the files after each turn: every, off, or every with limits, as in docs/forks.md.",
    ),
]
BudgetOption = Annotated[
    float | None,
    Option("--budget", metavar="DOLLARS", help="The most that the models of this run may cost.", show_default=False),
]
TokenBudgetOption = Annotated[
    int | None,
    Option("--budget-tokens", metavar="N", help="The most tokens that this run may use.", show_default=False),
]

TimeoutOption = Annotated[
    str | None,
    Option("--timeout", metavar="TIME", help="End the run after this time: 90s, 30m, 2h. 0 means never."),
]


def split_models(given: str | None) -> tuple[str | None, tuple[str, ...]]:
    """Returns the model and its fallbacks: `a,b,c`."""
    names = tuple(filter(None, (each.strip() for each in (given or "").split(","))))
    return (names[0], names[1:]) if names else (None, ())


def make_budget(cost: float | None, tokens: int | None) -> Budget | None:
    from holdfast.api.model.budgets import Budget

    return None if cost is None and tokens is None else Budget(cost=cost, tokens=tokens)
