"""`holdfast session diagnose`: what became of each part of a session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.names import find_session
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import ask
from holdfast.cli.sessions.commands import SessionArgument
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration

if TYPE_CHECKING:
    from holdfast.api.session.sessions import SessionDiagnosis, SessionStep
    from holdfast.client import Client

_STYLES: Final = {
    "running": "green", "done": "green", "failed": "red", "blocked": "red", "restarting": "yellow", "missing": "dim"
}  # fmt: skip
_TROUBLED: Final = ("failed", "blocked", "restarting")


def diagnose(
    session: SessionArgument,
    output: Annotated[
        bool, Option("--output", help="Show what each program printed last, also of those that run.")
    ] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Show each part of a session: its box, its files, and the programs of its workstation.

    Each line has the state of a part, since when, how long it took to start, and how often it was restarted. Of
    programs in trouble, the end of their output follows. A program that the box does not have is missing, and the
    rest works without it.

    \b
    holdfast session diagnose t-3kd9
    holdfast session diagnose t-3kd9 --output
    """

    async def work(client: Client) -> SessionDiagnosis:
        return await client.sessions.diagnose(await find_session(client, session))

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
        return
    took = "" if found.ms is None else f"  all ready after {found.ms} ms"
    write_field("session", Cell(found.id, "bold"), Cell(f"  {found.state}{took}", "dim"))
    now = time.time()
    write_table(("part", "state", "since", "took", "restarts", ""), [_row(each, now) for each in found.steps])
    for each in found.steps:
        if each.output and (output or each.state in _TROUBLED):
            write_field(each.name, Cell("printed last:", "dim"))
            for line in each.output.splitlines():
                write_line(Cell(f"    {line}", "dim"))
    if not found.workstation:
        if found.state == "running":
            note("next", hint("holdfast session new --agent NAME --workstation"))
    elif any(each.state == "missing" for each in found.steps):
        note("next", hint("holdfast image build workstation makes an image with all programs, for new sessions"))


def _row(step: SessionStep, now: float) -> list[Cell | str]:
    since = "" if step.since is None else f"{describe_duration(max(0.0, now - step.since / 1000))} ago"
    return [
        Cell(step.name, "bold"),
        Cell(step.state, _STYLES.get(step.state, "")),
        since,
        "" if step.ms is None else f"{step.ms} ms",
        str(step.restarts) if step.restarts else "",
        Cell(step.detail, "dim"),
    ]
