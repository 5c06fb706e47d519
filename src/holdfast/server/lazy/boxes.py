"""The box service, opened in the background while the server already answers. Who needs it waits for it."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from holdfast.server.box_metrics import BoxSamples
from holdfast.server.lazy.loading import load_in_thread
from holdfast.threads.errors import StoreUnavailable

if TYPE_CHECKING:
    from holdfast.boxes.box import Box
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.boxes.service.pool import PoolSettings
    from holdfast.egress import GuestApi
    from holdfast.server.egress import Outside, ServerEgress
    from holdfast.storage.sqlite.boxes import SqliteBoxes

log = logging.getLogger(__name__)

T = TypeVar("T")
OpenProviders = Callable[["Egress"], Awaitable["Mapping[str, Provider]"]]


class Stopping(StoreUnavailable):
    """The server stops. What it was doing in a box goes on there, or was ended."""


class LazyBoxes:
    """Owns the box service, its rows, its providers and its way out. Boxes outlive all of them."""

    def __init__(
        self,
        database: Path,
        open_providers: OpenProviders,
        make_outside: Callable[[], Outside],
        *,
        node: str,
        pool: int = 0,
    ) -> None:
        """`pool` boxes are kept ready at most."""
        self.door: GuestApi | None = None
        """Where boxes ask Holdfast itself. Set before anything is opened."""
        self._database = database
        self._open_providers = open_providers
        self._make_outside = make_outside
        self._node = node
        self._pool = pool
        self._opening: asyncio.Task[Boxes] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._rows: SqliteBoxes | None = None
        self._providers: Mapping[str, Provider] = {}
        self._way_out: ServerEgress | None = None
        self._stopping = asyncio.Event()
        self.samples = BoxSamples()
        """What boxes use, as of a moment ago."""

    def begin(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_note_failure)

    async def get(self) -> Boxes:
        """The service, as soon as it is open. Raises what opening it raised."""
        self.begin()
        assert self._opening is not None
        return await asyncio.shield(self._opening)

    async def way_out(self) -> ServerEgress:
        """What boxes reach the network by, as soon as it is open."""
        await self.get()
        assert self._way_out is not None
        return self._way_out

    @property
    def opened(self) -> Boxes | None:
        """The service, where it is open by now."""
        task = self._opening
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    def let_go(self) -> None:
        """The server stops: end everything that somebody holds open, or they would hold it up."""
        self._stopping.set()

    async def until_stopping(self, pieces: AsyncIterator[T]) -> AsyncIterator[T]:
        """What may go on for ever, such as the output of a process: raises `Stopping` when the server stops."""
        stopping = asyncio.ensure_future(self._stopping.wait())
        following: asyncio.Future[T] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(pieces))
                await asyncio.wait((following, stopping), return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    raise Stopping("the server stops", hint="ask again when it is back")
                try:
                    piece = following.result()
                except StopAsyncIteration:
                    return
                yield piece
        finally:
            stopping.cancel()
            if following is not None and not following.done():
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            await close_pieces(pieces)

    async def close(self) -> None:
        if self._opening is not None:
            if not self._opening.done():
                self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        await self.samples.close()
        boxes = self.opened
        if boxes is not None:
            await boxes.close()
        for name, provider in self._providers.items():
            try:
                await provider.close()
            except Exception:
                log.exception("provider %s did not close", name)
        if self._way_out is not None:
            await self._way_out.close()
        if self._rows is not None:
            await self._rows.close()

    async def _open(self) -> Boxes:
        # Loading takes long enough that nobody else should wait for it.
        service, pool, rows, way_out = await load_in_thread(_load)
        outside = await asyncio.to_thread(self._make_outside)
        self._way_out = way_out(self._database, outside, door=self.door)
        await self._way_out.open()
        self._providers = await self._open_providers(self._way_out.proxy)
        self._rows = rows(self._database)
        await self._forget_the_dead(self._rows)
        boxes = service(
            self._rows, self._providers, node=self._node, pool=pool(boxes=self._pool, furnishings=_FURNISHINGS)
        )
        # Nobody waits for the first sweep: it may have much to clean up.
        self._sweeping = asyncio.create_task(boxes.start())
        self._sweeping.add_done_callback(_note_failure)
        return boxes

    async def _forget_the_dead(self, rows: SqliteBoxes) -> None:
        """The home is ours, so whoever has a lease in it was killed. What they were at is ours to finish, at once."""
        try:
            await rows.release_all()
        except Exception as error:  # a full disk, say: then the leases expire by themselves
            log.warning("the leases of the last server are left to expire: %s", error)


async def _start_interpreter(box: Box) -> None:
    if _STARTING not in sys.modules:
        await load_in_thread(partial(importlib.import_module, _STARTING))
    from holdfast.interpreter.kernel.start import furnish

    await furnish(box)


_STARTING: Final = "holdfast.interpreter.kernel.start"
_FURNISHINGS: Final = {"interpreter": _start_interpreter}


async def close_pieces(pieces: AsyncIterator[T]) -> None:
    """Let an async generator clean up after itself now."""
    if isinstance(pieces, AsyncGenerator):
        await pieces.aclose()


def _load() -> tuple[type[Boxes], type[PoolSettings], type[SqliteBoxes], type[ServerEgress]]:
    from holdfast.boxes.service.boxes import Boxes
    from holdfast.boxes.service.pool import PoolSettings
    from holdfast.server.egress import ServerEgress
    from holdfast.storage.sqlite.boxes import SqliteBoxes

    # What WebSockets and ports need, so that the first visitor does not wait for it.
    for needed in ("holdfast.server.wire.websocket_protocol", "holdfast.server.wire.tunnel"):
        importlib.import_module(needed)
    return Boxes, PoolSettings, SqliteBoxes, ServerEgress


def _note_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the box service failed to start", exc_info=error)
