"""The interpreters of a server, loaded when somebody first asks for one: who runs none does not wait for them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.server.lazy.loading import load_in_thread

if TYPE_CHECKING:
    from holdfast.server.interpreters import ServerInterpreters
    from holdfast.server.lazy.boxes import LazyBoxes
    from holdfast.server.lazy.models import LazyModels
    from holdfast.threads.seals import Seals
    from holdfast.threads.service import Threads
    from holdfast.threads.store import StreamStore

LABEL: Final = "interpreter"
"""Of the threads of interpreters: the id."""


class LazyInterpreters:
    """Owns the service of interpreters. Their boxes outlive it."""

    def __init__(
        self,
        boxes: LazyBoxes,
        store: StreamStore,
        threads: Threads,
        models: LazyModels,
        seals: Seals,
        home: Path,
        environment: Mapping[str, str],
    ) -> None:
        """`environment` is what this machine's package tools go by, where a template is built."""
        self._boxes = boxes
        self._store = store
        self._threads = threads
        self._models = models
        self._seals = seals
        self._home = home
        self._environment = environment
        self._opening: asyncio.Task[ServerInterpreters] | None = None

    async def get(self) -> ServerInterpreters:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        if self._opening is not None:
            await (await self._opening).close()

    async def _open(self) -> ServerInterpreters:
        for name in ("holdfast.server.interpreters", "holdfast.server.template_builder"):
            await load_in_thread(partial(importlib.import_module, name))
        from holdfast.server.interpreters import ServerInterpreters
        from holdfast.server.template_builder import ServerTemplates

        templates = ServerTemplates(self._boxes, self._home, self._environment)
        return ServerInterpreters(self._boxes, self._store, self._threads, self._models, templates, self._seals)
