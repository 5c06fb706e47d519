"""`holdfast steer`: says something to a thread while its run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parameters import Argument, Option
from holdfast.cli.run.options import RunThreadArgument
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import hint, note, write_field, write_json
from holdfast.cli.thread.names import find_thread

if TYPE_CHECKING:
    from holdfast.api.runs import Steered
    from holdfast.client import Client

_HOW: Final = {
    "queued": "the agent hears it when it has done what it is at",
    "interrupting": "the agent is interrupted, and goes on with this",
    "launched": "no run was going on: one has begun",
}


def steer(
    thread: RunThreadArgument,
    prompt: Annotated[str, Argument(metavar="PROMPT", help="What to say.", show_default=False)],
    interrupt: Annotated[bool, Option("--interrupt", help="Now, and not when the agent is done.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Say something to the agent of a thread while it works: it hears it next, or at once with --interrupt."""

    async def work(client: Client) -> Steered:
        return await client.runs.steer(await find_thread(client, thread), prompt, interrupt=interrupt)

    steered = ask(where, work)
    if as_json:
        write_json(steered.to_json())
        return
    write_field(steered.how, _HOW.get(steered.how, ""))
    note("next", hint(f"holdfast attach {thread}"))
