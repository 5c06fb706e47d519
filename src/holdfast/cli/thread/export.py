"""`holdfast export`: a thread as a file: its entries as JSON lines, or one HTML page."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.run.options import RunThreadArgument
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import note
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.exports.page import Exported


def export(
    thread: RunThreadArgument,
    page: Annotated[bool, Option("--html", help="One HTML page with timeline, changes and cost.")] = False,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="A new file. Default: standard output.")
    ] = None,
    *,
    where: Where,
) -> None:
    """Write a thread to a file: all entries, one JSON object in each line, or one HTML page that stands alone.

    The first line names the thread. holdfast import makes a thread of the lines again, here or on another machine.
    A thread contains what people and agents wrote, and what tools printed. Look at it before you pass it on.

    \b
    holdfast export t-1 > thread.jsonl
    holdfast export t-1 --html -o thread.html
    """
    with _opened(output) as file:

        async def work(client: Client) -> None:
            id = await find_thread(client, thread)
            if page:
                from holdfast.exports.page import render

                file.write(render(await _gather(client, id)).encode("utf-8", "replace"))
                return
            from holdfast.exports.thread_file import entry_line, head_line

            info = await client.threads.get(id)
            file.write(head_line(id, info.title, time.time_ns() // 1_000_000))
            async for entry in client.thread(id).entries():
                file.write(entry_line(entry))

        ask(where, work)
    if output is not None:
        note("exported", str(output), f"  {describe_size(output.stat().st_size)}")


async def _gather(client: Client, id: str) -> Exported:
    from holdfast.api.errors import HoldfastError
    from holdfast.exports.page import MOST_ENTRIES, Exported

    info = await client.threads.get(id)
    entries = []
    async for entry in client.thread(id).entries():
        entries.append(entry)
        if len(entries) > MOST_ENTRIES:
            break
    patch, cut = None, False
    with suppress(HoldfastError):  # a thread without a box has no changes to show
        changes = await client.runs.changes(id)
        patch, cut = changes.patch, changes.truncated
    costs = {}
    with suppress(HoldfastError):  # only administrators may read the costs of runs
        costs = {each.key: each for each in (await client.costs.report(thread=id, by="run")).by}
    return Exported(id, info.title or id, entries, patch=patch, patch_cut=cut, cost=info.cost, costs=costs)


@contextmanager
def _opened(output: Path | None) -> Iterator[IO[bytes]]:
    """Open a new file, which is there when all is written, or standard output."""
    if output is None:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if output.exists():
        raise CommandError(f"{output} already exists", next_step="choose another name", exit=Exit.CONFLICT)
    try:
        file = tempfile.NamedTemporaryFile(dir=output.parent, prefix=f".{output.name}.", delete=False)  # noqa: SIM115
    except OSError as error:
        raise CommandError(f"cannot write {output}: {error.strerror}", next_step="choose another folder") from None
    try:
        with file:
            yield file
        os.link(file.name, output)  # fails if someone has made it meanwhile
    except FileExistsError:
        raise CommandError(f"{output} already exists", next_step="choose another name", exit=Exit.CONFLICT) from None
    finally:
        Path(file.name).unlink(missing_ok=True)
