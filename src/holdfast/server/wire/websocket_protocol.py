"""A WebSocket connection that reports its loss even while nothing receives from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from holdfast.server.wire.uvicorn_adapter import Config, ServerState

_HANDSHAKE: Final = ("websocket.accept", "websocket.http.response.start", "websocket.http.response.body")


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Sets `lost` in the state of its scope when it ends, for code that waits for something else, such as a command."""

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any]) -> None:
        self._lost = asyncio.Event()
        self.on_lost: Callable[[], None] | None = None
        super().__init__(config, server_state, {**app_state, "lost": self._lost})

    async def send(self, message: Any) -> None:
        """Send a message. An answer to the handshake of a client that has left is dropped: the next use of the
        connection reports the loss. Starlette treats an error at this point as one of the application.
        """
        if self.disconnected and message["type"] in _HANDSHAKE:
            return
        await super().send(message)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._lost.set()
        if self.on_lost is not None:
            self.on_lost()
