"""What we use of uvicorn, and the only place that knows where uvicorn keeps it.

Half of it is not public: uvicorn may change it in any minor release, so pyproject.toml bounds the version. All that we
rely on is listed in tests/server/test_uvicorn_adapter.py; run that first with a new version. The base of WebSocket
connections is in websocket_protocol.py, because it takes a while to load and many servers never need it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Generator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

__all__ = ["STATUS_LINE", "Config", "HttpToolsProtocol", "Server", "ServerState", "make_config"]

Config = uvicorn.Config
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def make_config(app: Any, protocol: Any, **options: Any) -> Config:
    """Return uvicorn's settings for connections that `protocol` serves: no lifespan, no log, no choice of event loop.
    WebSockets are left to the protocol."""
    return Config(
        app,
        http=protocol,
        loop="none",
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        **options,
    )


class Server(uvicorn.Server):
    """Serves until a signal or `stop`. Ends long-lived responses before uvicorn waits for them."""

    def __init__(
        self,
        config: Config,
        on_starting: Callable[[], None],
        on_started: Callable[[], None],
        on_stopping: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._on_starting = on_starting
        self._on_started = on_started
        self._on_stopping = on_stopping

    @property
    def connections(self) -> set[Any]:
        """The protocols of all open connections."""
        return self.server_state.connections

    async def listen(self, listener: socket.socket, protocol: Any) -> asyncio.AbstractServer:
        """Serve the connections of one more socket by `protocol`. They count among those of this server."""
        return await asyncio.get_running_loop().create_server(
            lambda: protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state),
            sock=listener,
            backlog=128,
        )

    def stop(self) -> None:
        """Make `serve` return, once the requests in progress have ended."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """A signal only ends serving. Uvicorn would raise it again, before we have closed anything."""
        loop = asyncio.get_running_loop()
        for name in _SIGNALS:
            loop.add_signal_handler(name, self.handle_exit, name, None)
        try:
            yield
        finally:
            for name in _SIGNALS:
                loop.remove_signal_handler(name)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_starting()
        await super().startup(sockets)
        self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_stopping()
        await super().shutdown(sockets)
