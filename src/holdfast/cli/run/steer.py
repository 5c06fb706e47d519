"""`holdfast steer`: sends a prompt to the agent of a thread while it works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.options import RunThreadArgument
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import hint, note, write_field, write_json

if TYPE_CHECKING:
    from holdfast.api.run.runs import Steered
    from holdfast.client import Client

_HOW: Final = {
    "queued": "the agent gets it after its current work",
    "interrupting": "the agent is interrupted, and continues with this",
    "launched": "no run was in progress, so one was started",
}


def steer(
    thread: RunThreadArgument,
    prompt: Annotated[str, Argument(metavar="PROMPT", help="Prompt to send.", show_default=False)],
    interrupt: Annotated[bool, Option("--interrupt", help="Interrupt the agent instead of waiting for it.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Send a prompt to the agent of a thread while it works. It gets it next, or at once with --interrupt."""

    async def work(client: Client) -> Steered:
        return await client.runs.steer(await find_thread(client, thread), prompt, interrupt=interrupt)

    steered = ask(where, work)
    if as_json:
        write_json(steered.to_json())
        return
    write_field(steered.how, _HOW.get(steered.how, ""))
    note("next", hint(f"holdfast attach {thread}"))
