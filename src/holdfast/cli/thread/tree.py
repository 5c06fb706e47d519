"""`holdfast thread tree` and `thread wait`: a thread with its tasks and forks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.errors import CommandError, read_value
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, ThreadArgument, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import RESTART_SECONDS, ask, reach
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line
from holdfast.cli.terminal.durations import describe_duration, parse_duration
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from holdfast.api.run.tasks import ThreadTree, TreeThread
    from holdfast.client import Client

_STYLES = {"running": "green", "failed": "red", "cancelled": "yellow", "idle": "dim"}


def tree(
    id: ThreadArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show the tree that a thread is in: its tasks and forks, and theirs."""

    async def work(client: Client) -> tuple[str, ThreadTree]:
        found = await find_thread(client, id)
        return found, await client.tasks.tree(found)

    asked, found = ask(where, work)
    if as_json:
        write_json(found.to_json())
        return
    now = time.time()
    for line in tree_lines(found, asked, now):
        write_line(*line)
    if found.truncated:
        note("more", "the tree has more threads than these")


def tree_lines(tree: ThreadTree, asked: str, now: float) -> list[list[Cell | str]]:
    """Returns one line for each thread, indented below its parent or source."""
    children: dict[str | None, list[TreeThread]] = {}
    for each in tree.threads:
        above = None if each.id == tree.root else each.fork_of or each.parent
        children.setdefault(above, []).append(each)
    lines: list[tuple[Cell, ...]] = []
    pending = [(each, "", "") for each in children.get(None, [])]
    while pending:
        each, indent, branch = pending.pop(0)
        below = children.get(each.id, [])
        lines.append(
            (
                Cell(indent + branch, "dim"),
                Cell(each.id, "bold" if each.id == asked else ""),
                Cell(each.status, _STYLES.get(each.status, "")),
                Cell(_kind(each)),
                Cell(f"{describe_duration(now - each.last_activity_at / 1000)} ago", "dim"),
                Cell(plain(each.title or "")),
            )
        )
        inner = indent + {"": "", "├─ ": "│  ", "└─ ": "   "}[branch]
        last = len(below) - 1
        pending[:0] = [(child, inner, "└─ " if number == last else "├─ ") for number, child in enumerate(below)]
    return _aligned(lines)


def _aligned(lines: list[tuple[Cell, ...]]) -> list[list[Cell | str]]:
    """Returns the lines in columns. The branches and the id are the first one."""
    if not lines:
        return []
    first = max(len(branch.text) + len(id.text) for branch, id, *_ in lines)
    widths = [max(len(line[index].text) for line in lines) for index in range(2, 5)]
    aligned: list[list[Cell | str]] = []
    for branch, id, *cells, title in lines:
        line: list[Cell | str] = [branch, id, " " * (first - len(branch.text) - len(id.text) + 2)]
        for cell, width in zip(cells, widths, strict=True):
            line += [cell, " " * (width - len(cell.text) + 2)]
        aligned.append([*line, title])
    return aligned


def _kind(each: TreeThread) -> str:
    kind = "fork" if each.fork_of is not None else "task" if each.task else "thread"
    return kind if each.agent is None else f"{kind}, {each.agent}"


def wait(
    id: ThreadArgument,
    timeout: Annotated[
        str | None, Option("--timeout", metavar="TIME", help="Give up after this time: 90s, 30m, 2h.")
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Wait until a thread and all its tasks have ended. Exits with 0 only if all of them completed.

    A restart of the server does not end it.
    """
    seconds = read_value(parse_duration, timeout)

    async def work(client: Client) -> tuple[str, ThreadTree]:
        found = await find_thread(client, id)
        try:
            async with time_limit(seconds or None), reach(where, retry_seconds=RESTART_SECONDS) as patient:
                return found, await patient.tasks.wait(found)
        except TimeoutError:
            raise CommandError(
                f"thread {found} has not ended within {timeout}",
                next_step=f"holdfast thread tree {found}",
                exit=Exit.TIMED_OUT,
            ) from None

    asked, found = ask(where, work)
    from holdfast.client.run.tasks import below

    ended = below(found, asked)
    failed = [each for each in ended if each.status in ("failed", "cancelled")]
    if as_json:
        write_json(found.to_json())
    else:
        write_field("ended", f"thread {asked}" + ("" if len(ended) == 1 else f" and {len(ended) - 1} below it"))
        for each in failed:
            note(each.status, f"{each.id}  {plain(each.title or '')}")
        if failed:
            note("next", hint(f"holdfast thread diagnose {failed[0].id}"))
    return Exit.FAILURE if failed else Exit.OK
