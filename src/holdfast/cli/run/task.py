"""`holdfast task`: the tasks of a thread, after `holdfast delegate` or an agent has started them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, ThreadArgument, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import RESTART_SECONDS, ask, reach
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration

if TYPE_CHECKING:
    from holdfast.api.run.tasks import TaskInfo, TaskResult
    from holdfast.client import Client

TaskArgument = Annotated[str, Argument(metavar="TASK", help="Id of the task, or a prefix.", show_default=False)]


def list_(id: ThreadArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """List the tasks of a thread, most recently active first. Those of its tasks are in `holdfast thread tree`."""

    async def work(client: Client) -> tuple[str, list[TaskInfo]]:
        found = await find_thread(client, id)
        return found, await client.tasks.list(found)

    thread, tasks = ask(where, work)
    if as_json:
        write_json({"tasks": [each.to_json() for each in tasks]})
        return
    if not tasks:
        note("none", f"thread {thread} has delegated no task")
        note("next", hint(f'holdfast delegate {thread} "…"'))
        return
    now = time.time()
    write_table(
        ("task", "status", "agent", "box", "began", "title"),
        [
            (
                Cell(each.id, "bold"),
                each.status,
                each.agent,
                each.box,
                f"{describe_duration(now - each.created_at / 1000)} ago",
                plain(each.title or ""),
            )
            for each in tasks
        ],
    )


def show(id: TaskArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Show a task."""

    async def work(client: Client) -> TaskInfo:
        return await client.tasks.get(await find_thread(client, id))

    task = ask(where, work)
    if as_json:
        write_json(task.to_json())
        return
    write_field("task", Cell(task.id, "bold"), f"  {plain(task.title or '')}")
    write_field("status", task.status)
    write_field("agent", f"{task.agent}  {task.model}")
    write_field("box", task.box)
    write_field("parent", task.parent, "" if task.root == task.parent else f"  in the tree of {task.root}")
    if task.open_tasks:
        write_field("below", f"{task.open_tasks} tasks of its own have not ended")
    note("next", hint(f"holdfast {'task result' if task.reported else 'attach'} {task.id}"))


def result(
    id: TaskArgument,
    wait: Annotated[bool, Option("--wait", help="Wait for the end.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Print the last message of a task's agent. Exits with 0 only if the task completed.

    With --wait, a restart of the server does not end it.
    """

    async def work(client: Client) -> TaskResult:
        found = await find_thread(client, id)
        async with reach(where, retry_seconds=RESTART_SECONDS if wait else 0.0) as patient:
            return await patient.tasks.result(found, wait=wait)

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
    elif found.result is None:
        raise CommandError(f"task {found.id} has not ended", next_step=f"holdfast task result {found.id} --wait")
    else:
        note("task", f"{found.id} {found.status}")
        write_line(plain(found.result or (found.error.message if found.error else "")))
    return Exit.OK if found.status == "completed" else Exit.FAILURE


def cancel(id: TaskArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Cancel a task, and the tasks that it has started. A task that has ended stays as it is."""

    async def work(client: Client) -> TaskInfo:
        return await client.tasks.cancel(await find_thread(client, id))

    task = ask(where, work)
    if as_json:
        write_json(task.to_json())
        return
    write_field("task", Cell(task.id, "bold"), f"  {task.status}")
    note("next", hint(f"holdfast task result {task.id} --wait"))
