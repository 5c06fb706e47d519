"""The interpreters of a server, loaded when somebody first asks for one: who runs none does not wait for them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.server.loading import load_aside

if TYPE_CHECKING:
    from holdfast.server.late_boxes import LateBoxes
    from holdfast.server.late_models import LateModels
    from holdfast.server.live_interpreters import LiveInterpreters
    from holdfast.threads.seals import Seals
    from holdfast.threads.service import Threads
    from holdfast.threads.store import StreamStore

LABEL: Final = "interpreter"
"""Of the threads of interpreters: the id."""


class LateInterpreters:
    """Owns the service of interpreters. Their boxes outlive it."""

    def __init__(
        self,
        boxes: LateBoxes,
        store: StreamStore,
        threads: Threads,
        models: LateModels,
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
        self._opening: asyncio.Task[LiveInterpreters] | None = None

    async def get(self) -> LiveInterpreters:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(self._opening)

    async def close(self) -> None:
        if self._opening is not None:
            await (await self._opening).close()

    async def _open(self) -> LiveInterpreters:
        for name in ("live_interpreters", "template_workshop"):
            await load_aside(partial(importlib.import_module, f"holdfast.server.{name}"))
        from holdfast.server.live_interpreters import LiveInterpreters
        from holdfast.server.template_workshop import ServerTemplates

        templates = ServerTemplates(self._boxes, self._home, self._environment)
        return LiveInterpreters(self._boxes, self._store, self._threads, self._models, templates, self._seals)
