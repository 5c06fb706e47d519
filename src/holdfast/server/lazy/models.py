"""The models of a server and their gateway, opened in the background. Who needs them waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.server.lazy.loading import load_in_thread

if TYPE_CHECKING:
    from holdfast.egress.models import ModelGateway, Models
    from holdfast.server.lazy.boxes import LazyBoxes

log = logging.getLogger(__name__)


class LazyModels:
    """Owns the models and the gateway. The way to providers is the one that boxes find beyond the server."""

    def __init__(self, database: Path, secret: bytes, boxes: LazyBoxes) -> None:
        """`secret` seals their keys."""
        self._database = database
        self._secret = secret
        self._boxes = boxes
        self._stack = contextlib.AsyncExitStack()
        self._opening: asyncio.Task[Models] | None = None
        self._gateway: ModelGateway | None = None

    def begin(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(_note_failure)

    async def get(self) -> Models:
        """The models, as soon as they are open. Raises what opening them raised."""
        self.begin()
        assert self._opening is not None
        return await asyncio.shield(self._opening)

    async def gateway(self) -> ModelGateway:
        """What carries requests to them, as soon as the way out is open."""
        models = await self.get()
        way_out = await self._boxes.way_out()
        if self._gateway is None:
            from holdfast.egress.models import ModelGateway

            self._gateway = ModelGateway(models, way_out.make_upstream)
        return self._gateway

    async def close(self) -> None:
        if self._opening is not None:
            if not self._opening.done():
                self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        try:
            if self._gateway is not None:
                await self._gateway.close()
        finally:
            await self._stack.aclose()

    async def _open(self) -> Models:
        await load_in_thread(_load)  # which takes long enough that nobody else should wait for it
        from holdfast.egress.models import Models
        from holdfast.storage.sqlite.database import Database
        from holdfast.storage.sqlite.models import SqliteModels

        database = await self._stack.enter_async_context(Database(self._database))
        return await self._stack.enter_async_context(Models(SqliteModels(database), self._secret))


def _load() -> None:
    importlib.import_module("holdfast.storage.sqlite.models")


def _note_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the models failed to open", exc_info=error)
