"""`holdfast compare`: what two threads with a common past have done since they parted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from holdfast.api.model.money import describe_cost, describe_in_full
from holdfast.cli.errors import read_value, usage_error
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.options import RunThreadArgument
from holdfast.cli.session import ask
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line
from holdfast.cli.terminal.durations import describe_duration, parse_duration

if TYPE_CHECKING:
    from holdfast.api.run.checkpoints import Branch, Comparison
    from holdfast.client import Client

_MOST_LINES = 12


def compare(
    first: RunThreadArgument,
    second: Annotated[str, Argument(metavar="OTHER", help="The other thread.", show_default=False)],
    test: Annotated[
        str | None,
        Option(
            "--test",
            metavar="COMMAND",
            help="Run this in a copy of each box, and show how it ends. Default: the test command of the environment.",
            show_default=False,
        ),
    ] = None,
    no_test: Annotated[bool, Option("--no-test", help="Do not run the test command of the environment.")] = False,
    timeout: Annotated[str, Option("--timeout", metavar="TIME", help="How long the command may take.")] = "10m",
    patch: Annotated[bool, Option("--patch", "-p", help="Print the changes themselves, not only the files.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Compare two branches: where they part, and what each changed, how long it took and what it cost since then.

    \b
    holdfast compare t-1 t-2
    holdfast compare t-1 t-2 --test "pytest -q"
    """
    seconds = read_value(parse_duration, timeout)
    if test is not None and no_test:
        raise usage_error("--test and --no-test exclude each other", "give only one of them")

    async def work(client: Client) -> Comparison:
        ids = [await find_thread(client, each) for each in (first, second)]
        return await client.forks.compare(ids[0], ids[1], test=test, seconds=seconds or 600, without_test=no_test)

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
        return
    write_field("part after", f"turn {found.parted.turn} of {found.parted.thread}")
    if found.test is not None and test is None:
        write_field("test", plain(found.test).replace("\n", "␊"), hint("  of the environment"))
    for branch in found.branches:
        _show(branch, patch=patch)
    note("next", hint(f"holdfast diff {found.branches[1].thread}"))


def _show(branch: Branch, *, patch: bool) -> None:
    from holdfast.cli.run.changes.diff import patch_lines, stat_lines

    write_line()
    write_field("thread", Cell(branch.thread, "bold"), f"  {plain(branch.title or '')}")
    write_field("turns", f"{branch.turns}  {describe_duration(branch.ms / 1000)}  {_cost(branch)}")
    if branch.test is not None:
        _show_test(branch)
    if not branch.files:
        write_field("files", "unchanged")
    for line in patch_lines(branch.patch) if patch and branch.files else stat_lines(branch.files):
        write_line(*line)
    if branch.truncated:
        note("cut", "there are more changes than fit", hint(f"  holdfast diff {branch.thread}"))


def _show_test(branch: Branch) -> None:
    test = branch.test
    assert test is not None
    how, style = ("passed", "green") if test.exit_code == 0 else (f"failed with {test.exit_code}", "red")
    if test.exit_code is None:
        how = "took too long"
    write_field("test", Cell(how, style), hint(f"  {describe_duration(test.ms / 1000)}"))
    if test.exit_code != 0:
        for line in plain(test.output).rstrip("\n").split("\n")[-_MOST_LINES:]:
            write_line(Cell(f"    {line}", "dim"))


def _cost(branch: Branch) -> str:
    cost, used = branch.cost, branch.cost or branch.usage
    if used is None:
        return "cost unknown" if branch.turns else "no calls of models"
    tokens = f"{int(used.input + used.cache_read + used.cache_write):,} tokens in, {int(used.output):,} out"
    if cost is None:  # what the agent says: 0 if it does not know
        return f"{tokens}, cost {describe_cost(used.cost) if used.cost else 'unknown'}"
    return f"{tokens}, cost {describe_in_full(cost.cost, cost.unpriced)}"
