"""`holdfast cancel`: ends the run of a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.run.options import RunThreadArgument
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import hint, note, write_field, write_json
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from holdfast.api.run.info import RunInfo
    from holdfast.client import Client

_PATIENCE: Final = 60.0


def cancel(
    thread: RunThreadArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Cancel the run of a thread, and wait until it has ended. Its box and files stay."""
    from holdfast.client import NotFound

    async def work(client: Client) -> tuple[RunInfo, bool]:
        found = await find_thread(client, thread)
        try:
            before = await client.runs.get(found)
        except NotFound as error:
            if error.code != "run_not_found" or found.startswith("r-"):
                raise
            raise CommandError(
                f"thread {found} has no run to cancel",
                next_step="list runs in progress with holdfast runs --status running",
                exit=Exit.CONFLICT,
                code=error.code,
            ) from None
        cancelled = await client.runs.cancel(before.thread)
        try:
            async with time_limit(_PATIENCE):
                return await client.runs.wait(cancelled.id), before.live
        except TimeoutError:
            raise CommandError(
                f"run {cancelled.id} was cancelled, but has not ended yet",
                next_step=f"holdfast thread diagnose {thread}",
                exit=Exit.TIMED_OUT,
            ) from None

    run, was_live = ask(where, work)
    if as_json:
        write_json({**run.to_json(), "run": run.id})
    elif not was_live:
        note("nothing", f"to cancel: the run of thread {thread} had already ended ({run.status})")
    else:
        write_field(run.status, f"run {run.id} of thread {thread}")
        note("next", hint(f"holdfast resume {thread}"))
