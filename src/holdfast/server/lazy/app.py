"""An ASGI app that takes long to load, loaded in the background while the server already answers on streams.

FastAPI and its models take about half of a start. Nobody who follows a thread should wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.server.lazy.loading import load_in_thread


class LazyApp:
    """Stands where the app will stand. What is asked of it before it is loaded waits until it is."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._loading: asyncio.Task[Any] | None = None

    def begin(self) -> None:
        self._loading = asyncio.create_task(load_in_thread(self._load))

    async def loaded(self) -> Any:
        """The app, as soon as it is there."""
        if self._loading is None:
            self.begin()
        assert self._loading is not None
        return await asyncio.shield(self._loading)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        app = await self.loaded()
        await app(scope, receive, send)
