"""A WebSocket connection that reports its loss even while nothing receives from it."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from holdfast.server.wire.uvicorn_adapter import Config, ServerState


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Sets `lost` in the state of its scope when it ends, for code that waits for something else, such as a command."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        self._lost = asyncio.Event()
        super().__init__(config, server_state, {**app_state, "lost": self._lost})

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost.set()
