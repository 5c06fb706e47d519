"""`holdfast box snapshot`, `snapshots`, `restore` and `fork`: saved files of boxes, and boxes that start with them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.box.spec import parse_box_labels
from holdfast.cli.names import BoxArgument, find_box, find_snapshot
from holdfast.cli.options import JsonOption, LabelsOption, QuietOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import YesOption, confirm_end
from holdfast.cli.terminal.console import Cell, hint, is_terminal, write_field, write_json, write_line, write_table
from holdfast.cli.terminal.durations import describe_duration
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.api.box.records import BoxRecord
    from holdfast.boxes import Snapshot
    from holdfast.client import Client


def snapshot(
    box: BoxArgument,
    label: LabelsOption = None,
    quiet: QuietOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Save the files of a box as they are now. Its processes keep running. In a pipe, print only the snapshot's id."""
    labels = parse_box_labels(label or [])

    async def work(client: Client) -> Snapshot:
        row = await find_box(client, box)
        return await client.boxes.snapshot(row.id, labels=labels)

    began = time.monotonic()
    made = ask(where, work)
    if as_json:
        write_json(snapshot_document(made))
    elif quiet or not is_terminal():
        write_line(made.id)
    else:
        milliseconds = (time.monotonic() - began) * 1000
        write_field(
            "snapshot", Cell(made.id, "bold"), Cell(f"  {describe_size(made.size)}  {milliseconds:.0f} ms", "dim")
        )
        write_field("next", hint(f"holdfast box restore {made.id}"))


def snapshots(
    box: Annotated[str | None, Argument(metavar="BOX", help="Only snapshots of this box.", show_default=False)] = None,
    key: Annotated[str | None, Option(metavar="KEY", help="Only snapshots of boxes of this key.")] = None,
    delete: Annotated[
        list[str] | None, Option("--delete", metavar="SNAPSHOT", help="Delete this snapshot instead.")
    ] = None,
    yes: YesOption = False,
    quiet: QuietOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List snapshots, oldest first; or delete some.

    \b
    holdfast box snapshots --key build
    holdfast box snapshots --delete s-1
    """
    if delete:
        what = f"snapshot{'' if len(delete) == 1 else 's'} {', '.join(delete)}"
        flags = " ".join(f"--delete {each}" for each in delete)
        confirm_end("delete", what, f"holdfast box snapshots {flags}", yes=yes)
        _delete(where, delete, as_json=as_json)
        return

    async def work(client: Client) -> list[Snapshot]:
        # A snapshot outlives its box, whose row may still be found.
        id = None if box is None else (await find_box(client, box)).id
        return list(await client.boxes.snapshots(box=id, key=key))

    found = ask(where, work)
    if as_json:
        write_json({"snapshots": [snapshot_document(each) for each in found]})
    elif quiet:
        for each in found:
            write_line(each.id)
    elif not found:
        write_field("no snapshots", hint(f"create one with holdfast box snapshot {box or 'BOX'}"))
    else:
        now = time.time()
        write_table(
            ("id", "box", "size", "age", "provider", "labels"),
            [
                (
                    Cell(each.id, "bold"),
                    each.box,
                    describe_size(each.size),
                    describe_duration(now - each.created_at / 1000),
                    each.provider,
                    "  ".join(f"{name}:{value}" for name, value in _own_labels(each.labels.items())),
                )
                for each in found
            ],
        )


def restore(
    snapshot: Annotated[str, Argument(metavar="SNAPSHOT", help="Id of the snapshot.", show_default=False)],
    quiet: QuietOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create a box that starts with the files of a snapshot. In a pipe, print only its id."""

    async def work(client: Client) -> BoxRecord:
        return await client.boxes.restore(await find_snapshot(client, snapshot))

    _print_box(ask(where, work), quiet=quiet, as_json=as_json)


def fork(
    box: BoxArgument,
    quiet: QuietOption = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create another box with the same files and limits. In a pipe, print only its id."""

    async def work(client: Client) -> BoxRecord:
        row = await find_box(client, box)
        return await client.boxes.fork(row.id)

    _print_box(ask(where, work), quiet=quiet, as_json=as_json)


def snapshot_document(made: Snapshot) -> dict[str, Any]:
    return {
        "id": made.id,
        "provider": made.provider,
        "kind": made.kind,
        "holding": made.holding.value,
        "box": made.box,
        "parent": made.parent,
        "size": made.size,
        "createdAt": made.created_at,
        "labels": dict(made.labels),
    }


def _delete(where: Where, names: list[str], *, as_json: bool) -> None:
    async def work(client: Client) -> None:
        for name in names:
            id = await find_snapshot(client, name)
            freed = await client.boxes.delete_snapshot(id)
            if as_json:
                write_json({"id": id, "deleted": True, "freed": freed})
            else:
                write_field("deleted", id, Cell(f"  freed {describe_size(freed)}", "dim"))

    ask(where, work)


def _print_box(row: BoxRecord, *, quiet: bool, as_json: bool) -> None:
    from holdfast.cli.box.commands import describe_kind

    if as_json:
        write_json(row.to_json())
    elif quiet or not is_terminal():
        write_line(row.id)
    else:
        write_field("box", Cell(row.id, "bold"), f"  {describe_kind(row)}")
        write_field("next", hint(f"holdfast box shell {row.id}"))


def _own_labels(labels: Any) -> list[tuple[str, str]]:
    from holdfast.api.box.records import RESERVED

    return [(name, value) for name, value in labels if not name.startswith(RESERVED)]
