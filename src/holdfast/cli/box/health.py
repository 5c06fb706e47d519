"""`holdfast box ping` and `holdfast box diagnose`: where the time goes on the way to a box, and what is in the way."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parameters import Argument, Option
from holdfast.cli.session import BoxArgument, ask, find_box, open_box
from holdfast.cli.terminal.console import Cell, hint, write_json, write_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.boxes import Step
    from holdfast.client import Client

_TRIES: Final = 3


def ping(
    box: BoxArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Time each step of the way to a box and back. Exits with 1 where a step failed."""

    async def work(client: Client) -> list[Step]:
        from holdfast.boxes import Step

        handle = await open_box(client, box)
        server = Step("server", True, await _way_to_server(client), f"there and back, {client.url}")
        return [server, *await handle.ping()]

    steps = ask(where, work)
    return _tell(steps, as_json=as_json)


async def _way_to_server(client: Client) -> float:
    """Milliseconds, of the quickest of a few: the first one finds the server warming up."""
    taken = []
    for _ in range(_TRIES):
        began = time.monotonic()
        await client.health()
        taken.append((time.monotonic() - began) * 1000)
    return min(taken)


def diagnose(
    box: Annotated[
        str | None,
        Argument(metavar="BOX", help="A box; without one, its provider.", show_default=False),
    ] = None,
    provider: Annotated[str, Option(metavar="NAME", help="Without a box: which provider.")] = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Say what works and what does not. What fails has its next step, and makes this exit with 1."""

    async def work(client: Client) -> list[Step]:
        if box is None:
            return await client.boxes.diagnose(provider=provider)
        return await client.boxes.diagnose((await find_box(client, box)).id)

    return _tell(ask(where, work), as_json=as_json)


def _tell(steps: Sequence[Step], *, as_json: bool) -> Exit:
    works = all(step.ok for step in steps)
    if as_json:
        write_json({"ok": works, "steps": [_document(step) for step in steps]})
    else:
        for line in step_lines(steps):
            write_line(*line)
    return Exit.OK if works else Exit.FAILURE


def step_lines(steps: Sequence[Step]) -> list[tuple[Cell | str, ...]]:
    """A line per step, names and times aligned; under one that failed, what to do."""
    width = max((len(step.name) for step in steps), default=0)
    lines: list[tuple[Cell | str, ...]] = []
    for step in steps:
        sign = Cell("✓", "green") if step.ok else Cell("✗", "red")
        name = f" {step.name.ljust(width)}"
        lines.append(("  ", sign, name, f"  {step.milliseconds:9.2f} ms", Cell(f"  {step.detail}", "dim")))
        if step.next_step:
            lines.append((" " * (width + 20), hint(f"next: {step.next_step}")))
    return lines


def _document(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "ok": step.ok,
        "milliseconds": round(step.milliseconds, 3),
        "detail": step.detail,
        "next": step.next_step,
    }
