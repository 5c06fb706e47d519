"""`holdfast thread diagnose`: how far the run of a thread came, what is wrong with it, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import typer

from holdfast.cli.exits import Exit
from holdfast.cli.options import ApiKeyOption, HomeOption, JsonOption, ServerOption, ThreadArgument
from holdfast.cli.session import Where, ask
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line
from holdfast.cli.thread.names import find_thread

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.runs import Diagnosis

_MARKS: Final = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}


def diagnose(
    id: ThreadArgument,
    server: ServerOption = None,
    api_key: ApiKeyOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how far the run of a thread came, what is wrong with it, and what to do. Exits with 1 if something is."""

    async def work(client: Client) -> Diagnosis:
        return await client.runs.diagnose(await find_thread(client, id))

    found = ask(Where(server, api_key, home), work)
    if as_json:
        write_json(found.to_json())
    else:
        write_field("run", f"{found.run or 'none'}  {found.status}")
        width = max(len(each.stage) for each in found.findings) + 2
        for each in found.findings:
            mark, style = _MARKS[each.ok]
            write_line(Cell(f"  {mark} ", style), each.stage.ljust(width), plain(each.detail))
        if found.wrong is not None:
            write_field("wrong", Cell(plain(found.wrong), "red"))
        if found.next_step is not None:
            note("next", hint(plain(found.next_step)))
    raise typer.Exit(Exit.OK if found.wrong is None else Exit.FAILURE)
