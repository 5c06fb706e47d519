"""How commands reach a server, and find boxes by the names people use."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from holdfast.cli.completion import complete_box
from holdfast.cli.discovery import RetryNotes, again, find_server, leave_out_what_httpx_brings, the_home
from holdfast.cli.errors import CommandError, command_error
from holdfast.cli.exits import Exit
from holdfast.cli.options import Where
from holdfast.cli.parameters import Argument

if TYPE_CHECKING:
    from holdfast.api.box.records import BoxRecord
    from holdfast.client import Client
    from holdfast.client.box.box import RemoteBox
    from holdfast.client.box.process import RemoteProcess
    from holdfast.client.transport import Transport

T = TypeVar("T")

BoxArgument = Annotated[
    str,
    Argument(
        metavar="BOX",
        help="Id of the box, its beginning or end, or its key.",
        show_default=False,
        autocompletion=complete_box,
    ),
]
LIKE_AN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KIND: Final = re.compile(r"[a-z]-")
_LEAST: Final = 3
_SHOWN: Final = 5


def ask(where: Where, work: Callable[[Client], Awaitable[T]], *, retry_seconds: float = 0.0) -> T:
    """Run `work` with a client of the server that was asked for. Its errors become the command's.

    `retry_seconds` is how long a server that is being restarted is waited for.
    """

    import asyncio

    async def main() -> T:
        async with reach(where, retry_seconds=retry_seconds) as client:
            return await work(client)

    return asyncio.run(main())


def ask_blocking(where: Where, work: Callable[[Client], Awaitable[T]], *, retry_seconds: float = 0.0) -> T:
    """As `ask`, for work that asks one thing after the other: it needs no event loop, which takes long to load."""
    if is_secure(where):
        return ask(where, work, retry_seconds=retry_seconds)
    from holdfast.client.transport.blocking import BlockingTransport, run

    async def main() -> T:
        async with reach(where, retry_seconds=retry_seconds, transport=BlockingTransport()) as client:
            return await work(client)

    return run(main())


def is_secure(where: Where) -> bool:
    """Whether the server is reached by https, which only the transport with an event loop speaks."""
    return find_server(where.server, where.api_key, where.home, os.environ, the_home(None)).url.startswith("https:")


@contextlib.asynccontextmanager
async def reach(
    where: Where, *, retry_seconds: float = 0.0, transport: Transport | None = None
) -> AsyncIterator[Client]:
    """A client, found anew: a server that was started again has another key, perhaps another port."""
    found = find_server(where.server, where.api_key, where.home, os.environ, the_home(None))
    leave_out_what_httpx_brings()
    from holdfast.api.errors import HoldfastError
    from holdfast.client.client import Client

    try:
        client = Client(
            found.url,
            api_key=found.api_key,
            retry_seconds=retry_seconds,
            on_retry=RetryNotes().tell,
            find_again=again(where),
            transport=transport,
        )
    except ValueError as error:
        raise CommandError(str(error), exit=Exit.USAGE) from None
    async with client:
        try:
            yield client
        except HoldfastError as error:
            raise command_error(error, when_away=found.when_away) from error


async def open_box(client: Client, name: str) -> RemoteBox:
    """A handle on the box that people call by this name. Who asks closes it."""
    from holdfast.api.errors.boxes import BoxNotFound

    if LIKE_AN_ID.fullmatch(name):
        with contextlib.suppress(BoxNotFound):
            return await client.boxes.open(name)
    return await client.boxes.open((await find_by_other_name(client, name)).id)


async def find_box(client: Client, name: str) -> BoxRecord:
    """The row of a box, dead or alive."""
    from holdfast.api.errors.boxes import BoxNotFound

    if LIKE_AN_ID.fullmatch(name):
        with contextlib.suppress(BoxNotFound):
            return await client.boxes.get(name)
    return await find_by_other_name(client, name)


async def find_process(box: RemoteBox, name: str) -> RemoteProcess:
    """A process of a box, by its id or a part of it."""
    from holdfast.api.errors.boxes import ProcessNotFound

    if LIKE_AN_ID.fullmatch(name):
        with contextlib.suppress(ProcessNotFound):
            return await box.process(name)
    ids = matching([each.id for each in await box.processes()], name)
    if not ids:
        raise ProcessNotFound(
            f"box {box.id} has no process {name!r}", hint=f"holdfast box logs {box.id} lists its processes"
        )
    return await box.process(only(name, ids, "processes"))


async def find_snapshot(client: Client, name: str) -> str:
    """The id of a snapshot, by a part of it."""
    from holdfast.api.errors.boxes import SnapshotNotFound

    ids = [each.id for each in await client.boxes.snapshots()]
    if name in ids:
        return name
    found = matching(ids, name)
    if not found:
        raise SnapshotNotFound(f"there is no snapshot {name!r}", hint="holdfast box snapshots lists them")
    return only(name, found, "snapshots")


async def find_by_other_name(client: Client, name: str) -> BoxRecord:
    """The row of the box whose key this is, or whose id begins or ends so."""
    from holdfast.api.errors.boxes import BoxNotFound

    rows = [row async for row in client.boxes.list(all=True)]
    for among in ([row for row in rows if row.ended_at is None], rows):
        by_key = [row for row in among if row.key == name]
        ids = [row.id for row in by_key] or matching([row.id for row in among], name)
        if ids:
            id = only(name, ids, "boxes")
            return next(row for row in among if row.id == id)
    raise BoxNotFound(f"there is no box {name!r}, nor one whose id begins or ends so, or with that key")


def matching(ids: Iterable[str], name: str) -> list[str]:
    """Those that begin or end so; what says of which kind an id is may be left out.

    A name that says next to nothing means none: nobody wants to delete a box because it is the only one.
    """
    if len(name[2:] if _KIND.match(name) else name) < _LEAST:
        return []
    return [id for id in ids if id.startswith(name) or id.partition("-")[2].startswith(name) or id.endswith(name)]


def only(name: str, ids: Sequence[str], what: str) -> str:
    """The one that is meant; raises where that is not plain."""
    if len(ids) == 1:
        return ids[0]
    more = "" if len(ids) <= _SHOWN else f" and {len(ids) - _SHOWN} more"
    raise CommandError(
        f"{name!r} may be any of {len(ids)} {what}: {', '.join(ids[:_SHOWN])}{more}",
        next_step="give more of the id",
        exit=Exit.USAGE,
        code="ambiguous",
    )
