"""`holdfast box stop`, `start`, `delete` and `prune`: what becomes of boxes, and what that frees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.completion import complete_box
from holdfast.cli.errors import CommandError, command_error, print_error
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parameters import Argument, Option
from holdfast.cli.session import ask, find_box
from holdfast.cli.terminal.confirmation import YesOption, confirm
from holdfast.cli.terminal.console import Cell, note, write_field, write_json
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.api.box.records import BoxRecord, Pruned
    from holdfast.client import Client

BoxesArgument = Annotated[
    list[str],
    Argument(
        metavar="BOX",
        help="Ids of boxes, their beginnings or ends, or keys.",
        show_default=False,
        autocompletion=complete_box,
    ),
]


def stop(
    boxes: BoxesArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """End every process in a box. Its files stay: start goes on with them."""

    async def work(client: Client, row: BoxRecord) -> dict[str, Any]:
        return (await client.boxes.stop(row.id)).to_json()

    _each("stopped", boxes, where, work, as_json=as_json)


def start(
    boxes: BoxesArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Start a stopped box on its files. One that runs goes on running."""

    async def work(client: Client, row: BoxRecord) -> dict[str, Any]:
        return (await client.boxes.start(row.id)).to_json()

    _each("started", boxes, where, work, as_json=as_json)


def delete(
    boxes: Annotated[
        list[str] | None,
        Argument(
            metavar="BOX...",
            help="Ids of boxes, their beginnings or ends, or keys.",
            show_default=False,
            autocompletion=complete_box,
        ),
    ] = None,
    everything: Annotated[bool, Option("--all", help="Every box there is.")] = False,
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Delete boxes with their processes and files, for good. Snapshots and volumes stay.

    \b
    holdfast box delete b-1 b-2
    holdfast box list -q --label ci:42 | xargs holdfast box delete --yes
    holdfast box delete --all
    """
    if bool(boxes) == everything:
        raise CommandError(
            "say which boxes, or --all", next_step="holdfast box list shows the boxes there are", exit=Exit.USAGE
        )
    boxes = boxes or _all_boxes(where)
    if not boxes:
        write_field("nothing", Cell("there is no box", "dim"))
        return
    if not yes:
        _confirm_delete(where, boxes, command="--all" if everything else " ".join(boxes))

    async def work(client: Client, row: BoxRecord) -> dict[str, Any]:
        return {"id": row.id, "deleted": True, "freed": (await client.boxes.delete(row.id)).freed}

    _each("deleted", boxes, where, work, as_json=as_json)


def prune(
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Delete the boxes that nobody needs, now.

    These are ephemeral ones that are idle or stopped, and whatever something that died halfway left behind. Shared
    boxes, snapshots and volumes stay.
    """
    if not yes:
        confirm(
            "Delete every ephemeral box that is idle or stopped, and leftovers?",
            refusal="pruning deletes boxes for good, and there is nobody to ask",
            command="holdfast box prune --yes",
            unchanged="nothing was deleted",
        )

    async def work(client: Client) -> Pruned:
        return await client.boxes.prune()

    pruned = ask(where, work)
    if as_json:
        write_json(pruned.to_json())
        return Exit.OK
    for each in pruned.removed:
        write_field("deleted", each.id)
    for id in pruned.gone:
        write_field("gone", id, Cell("  its provider no longer has it", "dim"))
    for line in pruned.leftovers:
        write_field("removed", line)
    for line in pruned.failed:
        note("failed", line)
    if pruned.removed or pruned.gone or pruned.leftovers:
        write_field("freed", describe_size(pruned.freed))
    elif not pruned.failed:
        write_field("nothing", Cell("no idle ephemeral box, and no leftovers", "dim"))
    return Exit.FAILURE if pruned.failed else Exit.OK


def _all_boxes(where: Where) -> list[str]:
    async def work(client: Client) -> list[str]:
        return [each.id async for each in client.boxes.list()]

    return ask(where, work)


def _confirm_delete(where: Where, boxes: list[str], *, command: str) -> None:
    """Say what would be deleted, by its id: what was typed may be a key, or a part of an id."""

    async def work(client: Client) -> list[BoxRecord]:
        return [await find_box(client, name) for name in boxes]

    rows = ask(where, work)
    what = describe_boxes(rows)
    it, was = ("it", "was") if len(rows) == 1 else ("them", "were")
    confirm(
        f"Delete {what} with everything in {it}, for good?",
        refusal=f"deleting {what} is for good, and there is nobody to ask",
        command=f"holdfast box delete {command} --yes",
        unchanged=f"{what} {was} not deleted",
    )


def describe_boxes(rows: list[BoxRecord]) -> str:
    if len(rows) == 1:
        return f"box {rows[0].id}" + (f" ({rows[0].key})" if rows[0].key else "")
    return f"{len(rows)} boxes ({', '.join(row.id for row in rows)})"


def _each(
    done: str,
    boxes: list[str],
    where: Where,
    work: Callable[[Client, BoxRecord], Awaitable[dict[str, Any]]],
    *,
    as_json: bool,
) -> None:
    """Do it to one box after the other. One that fails does not keep the others from theirs."""

    async def all_of_them(client: Client) -> list[CommandError]:
        from holdfast.api.errors.boxes import BoxError

        failures: list[CommandError] = []
        for name in boxes:
            try:
                document = await work(client, await find_box(client, name))
            except BoxError as error:
                failures.append(command_error(error))
            except CommandError as error:
                failures.append(error)
            else:
                if as_json:
                    write_json(document)
                else:
                    freed = document.get("freed")
                    told = f"  freed {describe_size(freed)}" if done == "deleted" and freed is not None else ""
                    write_field(done, document["id"], Cell(told, "dim"))
        return failures

    failures = ask(where, all_of_them)
    if not failures:
        return
    for failure in failures[:-1]:
        print_error(failure, as_json=as_json)
    raise failures[-1]
