"""`holdfast box stop`, `start`, `delete` and `prune`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.completion import complete_box
from holdfast.cli.errors import CommandError, command_error, print_error
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_box
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
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
        help="Boxes: an id, its beginning or end, or a key.",
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
    """Stop boxes: end all their processes and keep their files. box start starts them again."""

    async def work(client: Client, row: BoxRecord) -> dict[str, Any]:
        return (await client.boxes.stop(row.id)).to_json()

    _for_each("stopped", boxes, where, work, as_json=as_json)


def start(
    boxes: BoxesArgument,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Start stopped boxes with the files they have. Running boxes are left alone."""

    async def work(client: Client, row: BoxRecord) -> dict[str, Any]:
        return (await client.boxes.start(row.id)).to_json()

    _for_each("started", boxes, where, work, as_json=as_json)


def delete(
    boxes: Annotated[
        list[str] | None,
        Argument(
            metavar="BOX...",
            help="Boxes: an id, its beginning or end, or a key.",
            show_default=False,
            autocompletion=complete_box,
        ),
    ] = None,
    everything: Annotated[bool, Option("--all", help="Delete all boxes.")] = False,
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Delete boxes with their processes and files, permanently. Snapshots and volumes stay.

    \b
    holdfast box delete b-1 b-2
    holdfast box list -q --label ci:42 | xargs holdfast box delete --yes
    holdfast box delete --all
    """
    if bool(boxes) == everything:
        raise CommandError(
            "name the boxes to delete, or give --all", next_step="list boxes with holdfast box list", exit=Exit.USAGE
        )
    boxes = boxes or _all_boxes(where)
    if not boxes:
        write_field("nothing", Cell("there are no boxes", "dim"))
        return
    if not yes:
        _confirm_delete(where, boxes, command="--all" if everything else " ".join(boxes))

    async def work(client: Client, row: BoxRecord) -> dict[str, Any]:
        return {"id": row.id, "deleted": True, "freed": (await client.boxes.delete(row.id)).freed}

    _for_each("deleted", boxes, where, work, as_json=as_json)


def prune(
    yes: YesOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Delete the boxes that nothing needs any more.

    Deletes ephemeral boxes that are idle or stopped, and what interrupted operations left behind. Shared boxes,
    snapshots and volumes stay.
    """
    if not yes:
        confirm(
            "Delete all ephemeral boxes that are idle or stopped, and leftovers?",
            refusal="pruning deletes boxes permanently, and there is no terminal to ask for confirmation",
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
        write_field("gone", id, Cell("  the provider no longer has it", "dim"))
    for line in pruned.leftovers:
        write_field("removed", line)
    for line in pruned.failed:
        note("failed", line)
    if pruned.removed or pruned.gone or pruned.leftovers:
        write_field("freed", describe_size(pruned.freed))
    elif not pruned.failed:
        write_field("nothing", Cell("no idle ephemeral boxes, and no leftovers", "dim"))
    return Exit.FAILURE if pruned.failed else Exit.OK


def _all_boxes(where: Where) -> list[str]:
    async def work(client: Client) -> list[str]:
        return [each.id async for each in client.boxes.list()]

    return ask(where, work)


def _confirm_delete(where: Where, boxes: list[str], *, command: str) -> None:
    """Ask, naming the boxes by their full ids: the user may have typed a key, or part of an id."""

    async def work(client: Client) -> list[BoxRecord]:
        return [await find_box(client, name) for name in boxes]

    rows = ask(where, work)
    what = describe_boxes(rows)
    it, was = ("it", "was") if len(rows) == 1 else ("them", "were")
    confirm(
        f"Delete {what} with everything in {it}, permanently?",
        refusal=f"deleting {what} is permanent, and there is no terminal to ask for confirmation",
        command=f"holdfast box delete {command} --yes",
        unchanged=f"{what} {was} not deleted",
    )


def describe_boxes(rows: list[BoxRecord]) -> str:
    if len(rows) == 1:
        return f"box {rows[0].id}" + (f" ({rows[0].key})" if rows[0].key else "")
    return f"{len(rows)} boxes ({', '.join(row.id for row in rows)})"


def _for_each(
    done: str,
    boxes: list[str],
    where: Where,
    work: Callable[[Client, BoxRecord], Awaitable[dict[str, Any]]],
    *,
    as_json: bool,
) -> None:
    """Do `work` to one box after the other. If one fails, the others still get their turn."""

    async def do_all(client: Client) -> list[CommandError]:
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
                    detail = f"  freed {describe_size(freed)}" if done == "deleted" and freed is not None else ""
                    write_field(done, document["id"], Cell(detail, "dim"))
        return failures

    failures = ask(where, do_all)
    if not failures:
        return
    for failure in failures[:-1]:
        print_error(failure, as_json=as_json)
    raise failures[-1]
