"""`holdfast delegate`: starts a task of a thread, with another agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from holdfast.cli.completion import complete_agent
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.options import ModelOption, RunThreadArgument, split_models
from holdfast.cli.session import RESTART_SECONDS, ask, reach
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.console import Cell, hint, is_terminal, note, write_field, write_json, write_line

if TYPE_CHECKING:
    from holdfast.api.run.tasks import TaskInfo, TaskResult
    from holdfast.client import Client

BoxName = Literal["own", "fork", "same"]


def delegate(
    thread: RunThreadArgument,
    prompt: Annotated[str, Argument(metavar="PROMPT", help="What the other agent should do.", show_default=False)],
    agent: Annotated[
        str | None,
        Option("--agent", metavar="NAME", help="Agent. Default: the one of the thread.", autocompletion=complete_agent),
    ] = None,
    model: ModelOption = None,
    box: Annotated[
        BoxName, Option("--box", help="A box of its own, a fork of the thread's box, or the same box.")
    ] = "own",
    wake: Annotated[bool, Option("--wake", help="Start a run of the thread with the result.")] = False,
    title: Annotated[str | None, Option(metavar="TEXT", help="Title of the task. Default: the prompt.")] = None,
    key: Annotated[
        str | None, Option("--key", metavar="TEXT", help="The same key on the same thread is the same task.")
    ] = None,
    wait: Annotated[bool, Option("--wait", help="Wait for the end, and print the result.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Delegate a task of a thread to another agent. Its end is reported on the thread.

    \b
    holdfast delegate t-3kd9 "review the diff" --agent codex --box fork --wake
    holdfast delegate t-3kd9 "look for dead code" --wait
    """

    first, fallbacks = split_models(model)

    async def work(client: Client) -> tuple[TaskInfo, TaskResult | None]:
        found = await find_thread(client, thread)
        if found.startswith("r-"):
            found = (await client.runs.get(found)).thread
        # From here on the server may be restarted: the task goes on, and a repeated request makes no second one.
        async with reach(where, retry_seconds=RESTART_SECONDS if wait else 0.0) as patient:
            task = await patient.tasks.delegate(
                found,
                prompt,
                title=title,
                agent=agent,
                model=first,
                fallbacks=fallbacks,
                box=box,
                wake=wake,
                key=key,
            )
            return task, (await patient.tasks.result(task.id) if wait else None)

    task, result = ask(where, work)
    if as_json:
        write_json(task.to_json() if result is None else result.to_json())
    elif result is not None:
        note("task", f"{task.id} {result.status}")
        write_line(plain(result.result or (result.error.message if result.error else "")))
    elif is_terminal():
        write_field("task", Cell(task.id, "bold"), f"  {task.agent}, {task.box} box")
        note("next", hint(f"holdfast attach {task.id}"))
    else:
        write_line(task.id)
    return Exit.OK if result is None or result.status == "completed" else Exit.FAILURE
