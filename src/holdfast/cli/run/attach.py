"""`holdfast attach`: shows what happened on a thread, and follows what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.run.options import RunThreadArgument
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import write_json

if TYPE_CHECKING:
    from holdfast.client import Client


def attach(
    thread: RunThreadArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Show what happened on a thread, and follow a run in progress. Exits with 0 only if the run completed."""
    from holdfast.cli.run.follow import (
        Following,
        conclude,
        interrupts,
        introduce,
        outcome,
        page_link,
        print_detached,
        show_history,
        showing,
    )

    async def work(client: Client) -> Exit:
        id = await find_thread(client, thread)
        if not as_json:
            await introduce(client, id)
        async with interrupts() as caught:
            with showing(as_json=as_json) as shown:
                since = await show_history(client, id, shown)
                in_progress = shown.lines.running or shown.lines.waiting
                finished = not in_progress or await Following(where, id, since, shown, caught).until_done()
            latest = shown.lines.latest
            if as_json:
                write_json(outcome(id, await page_link(client, id), latest))
            if not finished:
                if not as_json:
                    print_detached(id)
                return Exit.INTERRUPTED
            if as_json or latest is None:
                return Exit.OK if latest is None or latest.status == "completed" else Exit.FAILURE
            return conclude(id, latest)

    return ask(where, work)
