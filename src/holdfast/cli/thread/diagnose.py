"""`holdfast thread diagnose`: checks the stages of a thread's run, and suggests what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, ThreadArgument, Where
from holdfast.cli.session import ask
from holdfast.cli.terminal.agent_text import plain
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line

if TYPE_CHECKING:
    from holdfast.api.run.runs import Diagnosis
    from holdfast.client import Client

_MARKS: Final = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}


def diagnose(
    id: ThreadArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Show how far the run of a thread got, what is wrong, and what to do. Exits with 1 if something is wrong."""

    async def work(client: Client) -> Diagnosis:
        return await client.runs.diagnose(await find_thread(client, id))

    found = ask(where, work)
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
    return Exit.OK if found.wrong is None else Exit.FAILURE
