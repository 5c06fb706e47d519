"""`holdfast box move`: moves a box to another provider."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.names import BoxArgument, find_box
from holdfast.cli.options import JsonOption, QuietOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, is_terminal, note, write_field, write_json, write_line
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.api.box.records import MovedBox
    from holdfast.client import Client


def move(
    box: BoxArgument,
    to: Annotated[str, Option("--to", metavar="PROVIDER", help="Provider of the new box.")],
    image: Annotated[str | None, Option(metavar="IMAGE", help="Image of the new box. Default: the same.")] = None,
    stop: Annotated[bool, Option("--stop", help="End the processes of the box first.")] = False,
    keep: Annotated[bool, Option("--keep", help="Stop the old box instead of deleting it.")] = False,
    quiet: QuietOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Move a box to another provider. In a pipe, print only the id of the new box.

    The workspace is copied and compared, with permissions, links and times; the home folder and installed programs are
    not. Then the new box gets the key and the thread of the old one, which is deleted. If anything fails before that,
    the box stays as it is. Nothing is done if the provider lacks something that the box has, such as a limit.

    \b
    holdfast box move b-1 --to docker
    holdfast box move build --to docker --image python:3.13 --keep
    """
    from holdfast.cli.terminal.step_progress import StepProgress

    async def work(client: Client) -> MovedBox:
        row = await find_box(client, box)
        with StepProgress() as progress:
            return await client.boxes.move(row.id, to, image=image, stop=stop, keep=keep, progress=progress)

    began = time.monotonic()
    try:
        moved = ask(where, work)
    except KeyboardInterrupt:
        note("stopped", "unless it was done already, the move is undone; holdfast box list shows where the box is")
        raise
    if as_json:
        write_json(moved.to_json())
    elif quiet or not is_terminal():
        write_line(moved.box.id)
    else:
        took = f"  {describe_size(moved.bytes)}  {time.monotonic() - began:.1f} s"
        write_field("moved", Cell(moved.box.id, "bold"), f"  {moved.box.provider}", Cell(took, "dim"))
        write_field("next", hint(f"holdfast box shell {moved.box.id}"))
