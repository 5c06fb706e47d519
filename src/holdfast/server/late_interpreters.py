"""The interpreters of a server, loaded when somebody first asks for one: who runs none does not wait for them."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.server.late_boxes import LateBoxes
    from holdfast.server.late_models import LateModels
    from holdfast.server.live_interpreters import LiveInterpreters
    from holdfast.threads.service import Threads
    from holdfast.threads.store import StreamStore


class LateInterpreters:
    """Owns the service of interpreters. Their boxes outlive it."""

    def __init__(self, boxes: LateBoxes, store: StreamStore, threads: Threads, models: LateModels) -> None:
        self._boxes = boxes
        self._store = store
        self._threads = threads
        self._models = models
        self._opening: asyncio.Task[LiveInterpreters] | None = None

    async def get(self) -> LiveInterpreters:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        if self._opening is not None:
            await (await self._opening).close()

    async def _open(self) -> LiveInterpreters:
        await asyncio.to_thread(importlib.import_module, "holdfast.server.live_interpreters")
        from holdfast.server.live_interpreters import LiveInterpreters

        return LiveInterpreters(self._boxes, self._store, self._threads, self._models)
