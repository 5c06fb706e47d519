"""`holdfast box logs`: the processes that were started in a box, and their output."""

from __future__ import annotations

import re
import shlex
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from holdfast.cli.exits import Exit
from holdfast.cli.names import BoxArgument, find_process, open_box
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_table
from holdfast.cli.terminal.durations import describe_duration
from holdfast.cli.terminal.pipes import OutputPipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.boxes import Process, ProcessInfo
    from holdfast.client import Client

_OWN: Final = re.compile(r"^from (holdfast\.guest\.[a-z_.]+) import main$", re.MULTILINE)
"""The script that starts a program of Holdfast, which is `boxes.guest_archive`."""
_MORE: Final = "…"
_RESTART_SECONDS: Final = 60.0
"""How long to wait for a server that is being restarted, while following output."""


def logs(
    box: BoxArgument,
    process: Annotated[
        str | None,
        Argument(metavar="PROCESS", help="Process id. Without one, list all processes.", show_default=False),
    ] = None,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Print new output as it comes, until the process ends.")
    ] = False,
    stderr: Annotated[bool, Option("--stderr", help="Print its standard error instead of its output.")] = False,
    offset: Annotated[int, Option(metavar="BYTES", min=0, help="Start at this offset of the output.")] = 0,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Print the output of a process in a box, byte for byte. Without PROCESS, list the processes.

    These are the processes of box exec --detach and box shell. Ctrl-C stops printing, not the process.

    \b
    holdfast box logs b-1
    holdfast box logs b-1 p-1 --follow
    """
    if process is None:
        _list(where, box, as_json=as_json)
        return Exit.OK
    stream: Literal["stdout", "stderr"] = "stderr" if stderr else "stdout"
    seen = offset

    async def work(client: Client) -> ProcessInfo:
        nonlocal seen
        async with await open_box(client, box) as handle:
            found = await find_process(handle, process)
            out = OutputPipe(1)
            if follow:
                async for chunk in found.output(stream, offset):
                    await out.write(chunk.data)
                    seen = chunk.next_offset
            else:
                seen = await _print_existing(found, stream, offset, out)
            await out.flush()
            return await found.info()

    try:
        info = ask(where, work, retry_seconds=_RESTART_SECONDS if follow else 0.0)
    except KeyboardInterrupt:
        if not as_json:
            note("stopped", f"process {process} keeps running")
            note("next", hint(f"holdfast box logs {box} {process} --follow --offset {seen}"))
        return Exit.INTERRUPTED
    if follow and not as_json and info.exit_code != 0:
        note("ended", _state(info).text)
    return Exit.OK


async def _print_existing(process: Process, stream: Literal["stdout", "stderr"], offset: int, out: OutputPipe) -> int:
    while data := await process.read(stream, offset):
        await out.write(data)
        offset += len(data)
    return offset


def _list(where: Where, box: str, *, as_json: bool) -> None:
    async def work(client: Client) -> tuple[str, list[ProcessInfo]]:
        async with await open_box(client, box) as handle:
            return handle.id, list(await handle.processes())

    id, processes = ask(where, work)
    if as_json:
        write_json({"processes": [process_document(each) for each in processes]})
        return
    if not processes:
        write_field("no processes", hint(f"start one with holdfast box exec {id} --detach -- COMMAND"))
        return
    now = time.time()
    write_table(
        ("id", "state", "age", "terminal", "command"),
        [
            (
                Cell(each.id, "bold"),
                _state(each),
                describe_duration(now - each.started_at / 1000),
                "yes" if each.pty else "",
                describe_command(each.argv),
            )
            for each in processes
        ],
    )


def describe_command(argv: Sequence[str]) -> str:
    """Returns a command on one line. A program of Holdfast itself, such as the runner of an agent, is a long script in
    an argument, and is shown by its name.
    """
    if argv and (own := _OWN.search(argv[-1])):
        return f"{shlex.quote(argv[0])} … {own[1]}"
    return shlex.join(map(_first_line, argv))


def _first_line(argument: str) -> str:
    first, newline, _ = argument.partition("\n")
    return f"{first} {_MORE}" if newline else argument


def _state(info: ProcessInfo) -> Cell:
    if info.exit_code is not None:
        return Cell(f"exit {info.exit_code}", "dim" if info.exit_code == 0 else "red")
    return Cell(info.state.value, "green" if info.state == "running" else "red")


def process_document(info: ProcessInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "argv": list(info.argv),
        "pty": info.pty,
        "state": info.state.value,
        "exitCode": info.exit_code,
        "startedAt": info.started_at,
        "endedAt": info.ended_at,
    }
