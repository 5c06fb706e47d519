"""Finds boxes, processes, snapshots and threads by id or part of an id, and boxes by key, too."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.completion import complete_box
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.parsing.parameters import Argument

if TYPE_CHECKING:
    from holdfast.api.box.records import BoxRecord
    from holdfast.client import Client, SyncClient
    from holdfast.client.box.box import RemoteBox
    from holdfast.client.box.process import RemoteProcess

BoxArgument = Annotated[
    str,
    Argument(
        metavar="BOX",
        help="Id of the box, the beginning or end of it, or its key.",
        show_default=False,
        autocompletion=complete_box,
    ),
]
LIKE_AN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KIND: Final = re.compile(r"[a-z]-")
_LEAST: Final = 3
_SHOWN: Final = 5
_THREAD: Final = "t-"
_SEARCHED: Final = 10_000
"""Most threads to search, most recently active first."""


async def open_box(client: Client, name: str) -> RemoteBox:
    """Open a box by id, part of its id, or key. The caller closes it."""
    from holdfast.api.errors.boxes import BoxNotFound

    if LIKE_AN_ID.fullmatch(name):
        with contextlib.suppress(BoxNotFound):
            return await client.boxes.open(name)
    return await client.boxes.open((await find_by_other_name(client, name)).id)


async def find_box(client: Client, name: str) -> BoxRecord:
    """Return the row of a box, even of one that has ended."""
    from holdfast.api.errors.boxes import BoxNotFound

    if LIKE_AN_ID.fullmatch(name):
        with contextlib.suppress(BoxNotFound):
            return await client.boxes.get(name)
    return await find_by_other_name(client, name)


async def find_process(box: RemoteBox, name: str) -> RemoteProcess:
    """Return a process of a box, by its id or part of it."""
    from holdfast.api.errors.boxes import ProcessNotFound

    if LIKE_AN_ID.fullmatch(name):
        with contextlib.suppress(ProcessNotFound):
            return await box.process(name)
    ids = matching([each.id for each in await box.processes()], name)
    if not ids:
        raise ProcessNotFound(
            f"box {box.id} has no process {name!r}", hint=f"list its processes with holdfast box logs {box.id}"
        )
    return await box.process(only(name, ids, "processes"))


async def find_snapshot(client: Client, name: str) -> str:
    """Return the id of a snapshot, by the id or part of it."""
    from holdfast.api.errors.boxes import SnapshotNotFound

    ids = [each.id for each in await client.boxes.snapshots()]
    if name in ids:
        return name
    found = matching(ids, name)
    if not found:
        raise SnapshotNotFound(f"there is no snapshot {name!r}", hint="list snapshots with holdfast box snapshots")
    return only(name, found, "snapshots")


async def find_by_other_name(client: Client, name: str) -> BoxRecord:
    """Return the row of the box with this key, or whose id starts or ends with it."""
    from holdfast.api.errors.boxes import BoxNotFound

    rows = [row async for row in client.boxes.list(all=True)]
    for among in ([row for row in rows if row.ended_at is None], rows):
        by_key = [row for row in among if row.key == name]
        ids = [row.id for row in by_key] or matching([row.id for row in among], name)
        if ids:
            id = only(name, ids, "boxes")
            return next(row for row in among if row.id == id)
    raise BoxNotFound(f"there is no box {name!r}: no id equals, starts or ends with it, and no key equals it")


async def find_thread(client: Client, name: str) -> str:
    """Return the id of a thread. Raises `NotFound`, or a `CommandError` that lists several matches."""
    from holdfast.client import HoldfastError, NotFound

    if name.startswith("r-"):
        return name  # a run, which the API accepts in place of its thread
    try:
        return (await client.threads.get(name)).id
    except NotFound as missing:
        try:
            ids = [each.id async for each in client.threads.list(archived="any", limit=_SEARCHED)]
        except HoldfastError:  # a token for one thread cannot list threads
            raise missing from None
        return _only_one(name, ids, missing)


async def find_session(client: Client, name: str) -> str:
    """Return the id of a session. Raises `SessionNotFound`, or a `CommandError` that lists several matches."""
    from holdfast.api.errors.sessions import SessionNotFound
    from holdfast.client import NotFound

    try:
        return await find_thread(client, name)
    except NotFound:
        raise SessionNotFound(f"there is no session {name}", hint="list all sessions: holdfast session list") from None


def find_thread_now(client: SyncClient, name: str) -> str:
    """Like `find_thread`, for a sync client."""
    from holdfast.client import HoldfastError, NotFound

    try:
        return client.threads.get(name).id
    except NotFound as missing:
        try:
            ids = [each.id for each in client.threads.list(archived="any", limit=_SEARCHED)]
        except HoldfastError:
            raise missing from None
        return _only_one(name, ids, missing)


def _only_one(name: str, ids: list[str], missing: Exception) -> str:
    begun = [id for id in ids if id.startswith(name)] if name.startswith(_THREAD) and name != _THREAD else []
    found = list(dict.fromkeys([*begun, *matching(ids, name)]))
    if not found:
        raise missing from None
    return only(name, found, "threads")


def matching(ids: Iterable[str], name: str) -> list[str]:
    """Return the ids that start or end with `name`; the prefix of the kind, such as `b-`, may be left out.

    A very short name matches none, so that nobody deletes a box just because it is the only one.
    """
    if len(name[2:] if _KIND.match(name) else name) < _LEAST:
        return []
    return [id for id in ids if id.startswith(name) or id.partition("-")[2].startswith(name) or id.endswith(name)]


def only(name: str, ids: Sequence[str], what: str) -> str:
    """Return the only id. Raises `CommandError` if there are several."""
    if len(ids) == 1:
        return ids[0]
    more = "" if len(ids) <= _SHOWN else f" and {len(ids) - _SHOWN} more"
    raise CommandError(
        f"{name!r} matches {len(ids)} {what}: {', '.join(ids[:_SHOWN])}{more}",
        next_step="type more of the id",
        exit=Exit.USAGE,
        code="ambiguous",
    )
