"""`holdfast box ping` and `holdfast box diagnose`: how long each step to a box takes, and what fails."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any, Final

from holdfast.cli.exits import Exit
from holdfast.cli.names import BoxArgument, find_box, open_box
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
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
    """Measure each step to a box and back. Exits with 1 if a step fails."""

    async def work(client: Client) -> list[Step]:
        from holdfast.boxes import Step

        handle = await open_box(client, box)
        server = Step("server", True, await _round_trip(client), f"round trip, {client.url}")
        return [server, *await handle.ping()]

    steps = ask(where, work)
    return _print_steps(steps, as_json=as_json)


async def _round_trip(client: Client) -> float:
    """Milliseconds of the quickest of a few requests: the first one may find the server warming up."""
    taken = []
    for _ in range(_TRIES):
        began = time.monotonic()
        await client.health()
        taken.append((time.monotonic() - began) * 1000)
    return min(taken)


def diagnose(
    box: Annotated[
        str | None,
        Argument(metavar="BOX", help="Box to check. Without one, check the provider.", show_default=False),
    ] = None,
    provider: Annotated[str, Option(metavar="NAME", help="Provider to check, without a box.")] = "local",
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Check what works and what does not. Suggests a next step for each failure, and exits with 1 if there is one."""

    async def work(client: Client) -> list[Step]:
        if box is None:
            return await client.boxes.diagnose(provider=provider)
        return await client.boxes.diagnose((await find_box(client, box)).id)

    return _print_steps(ask(where, work), as_json=as_json)


def _print_steps(steps: Sequence[Step], *, as_json: bool) -> Exit:
    works = all(step.ok for step in steps)
    if as_json:
        write_json({"ok": works, "steps": [_document(step) for step in steps]})
    else:
        for line in step_lines(steps):
            write_line(*line)
    return Exit.OK if works else Exit.FAILURE


def step_lines(steps: Sequence[Step], width: int = 0) -> list[tuple[Cell | str, ...]]:
    """A line for each step, names and times aligned. Under a failed step, what to do. Names have at least `width`."""
    width = max(width, *(len(step.name) for step in steps)) if steps else width
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
