"""Serves the counterpart of the Sprites API on a port of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import weakref
from asyncio import BaseTransport, Transport
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, cast

import uvicorn
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from holdfast.egress import Connector, DecisionLog, EgressProxy, Resolver
from holdfast.loop_thread import LoopThread
from holdfast.providers.local import LocalProvider
from holdfast.storage import open_storage
from holdfast.testing.outside import Nowhere
from holdfast.testing.sprites.app import SpritesApp
from holdfast.testing.sprites.faults import Faults
from holdfast.testing.sprites.sprite import Prepare
from holdfast.time_limit import time_limit

_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 10.0
_MAX_MESSAGE: Final = 16 << 20


class SpritesCounterpart:
    """An organization at Sprites, on a free port of loopback, for the duration of its `with` block.

    It serves on a thread of its own and deletes its sprites at the end. `resolver` and `connector` are what sprites
    reach when their policy allows it: by default nothing. `environment` are variables of all commands in sprites.
    """

    def __init__(
        self,
        home: Path,
        *,
        resolver: Resolver | None = None,
        connector: Connector | None = None,
        environment: Mapping[str, str] | None = None,
        prepare: Prepare | None = None,
    ) -> None:
        """`prepare` is called with the local box of each new sprite, to put into it what sprites should begin with."""
        self.home = home
        self._environment = dict(environment or {})
        self._prepare = prepare
        self.token = f"counterpart/{secrets.token_hex(16)}"
        self.faults = Faults()
        self.url = ""
        self._resolver = resolver or Nowhere()
        self._connector = connector or Nowhere()
        self._thread = LoopThread()
        self._stack = contextlib.AsyncExitStack()
        self._app: SpritesApp | None = None
        self._websockets: weakref.WeakSet[Transport] = weakref.WeakSet()

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        try:
            self._thread.run(self._start())
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._thread.run(self._stack.aclose())
        finally:
            self._thread.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.__exit__, kind, error, trace)

    # --- what another client of the same organization, or the cloud itself, does ---

    @property
    def names(self) -> list[str]:
        """The names of all sprites."""
        return sorted(self._opened.sprites)

    def delete(self, name: str) -> None:
        """Delete a sprite."""
        self._thread.run(self._delete(name))

    def sleep(self, name: str) -> None:
        """Let a sprite fall asleep. Its processes end; its services start again with the next request."""
        self._thread.run(self._opened.sprites[name].sleep())

    def cut(self) -> None:
        """Cut all WebSockets at once, as a lost network does."""
        self._thread.run(self._cut())

    async def _cut(self) -> None:
        for transport in list(self._websockets):
            transport.abort()

    async def _delete(self, name: str) -> None:
        await self._opened.sprites.pop(name).delete()

    @property
    def _opened(self) -> SpritesApp:
        assert self._app is not None, "use it as a context manager"
        return self._app

    # --- serving ---

    async def _start(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for folder in ("records", "sprites"):
                (self.home / folder).mkdir(exist_ok=True)
            storage = await open_storage(self.home / "records")
            stack.push_async_callback(storage.close)
            records = await stack.enter_async_context(DecisionLog(storage.egress_decisions))
            egress = await stack.enter_async_context(EgressProxy(self._resolver, self._connector, records))
            provider = await stack.enter_async_context(LocalProvider(self.home / "sprites"))
            self._app = SpritesApp(provider, egress, self.token, self.faults, self._environment, self._prepare)
            stack.push_async_callback(self._app.close)
            await self._serve(stack)
            self._stack = stack.pop_all()

    async def _serve(self, stack: contextlib.AsyncExitStack) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        stack.callback(listener.close)
        config = uvicorn.Config(
            self.faults.wrap(cast(Any, self._opened.asgi())),
            ws=_cutting_protocol(self.faults, self._websockets),
            ws_max_size=_MAX_MESSAGE,
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))

        async def stop() -> None:
            server.should_exit = True
            try:
                async with time_limit(_STOP_SECONDS):
                    await serving
            except TimeoutError:
                server.force_exit = True

        stack.push_async_callback(stop)
        async with time_limit(_START_SECONDS):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.005)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"


class _CuttingTransport:
    """Passes everything on to a transport, until it is told to cut the connection in the middle of a write."""

    def __init__(self, transport: Transport, faults: Faults) -> None:
        self._transport = transport
        self._faults = faults
        self._sent = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self._sent += len(data)
        if self._faults.take_cut(self._sent):
            self._transport.write(data[: len(data) // 2])
            # What was written is sent before the connection is cut.
            asyncio.get_running_loop().call_later(0.02, self._transport.abort)
        else:
            self._transport.write(data)


def _cutting_protocol(faults: Faults, opened: weakref.WeakSet[Transport]) -> type[WebSocketsSansIOProtocol]:
    class CuttingProtocol(WebSocketsSansIOProtocol):
        def connection_made(self, transport: BaseTransport) -> None:
            opened.add(cast(Transport, transport))
            super().connection_made(cast(Transport, _CuttingTransport(cast(Transport, transport), faults)))

    return CuttingProtocol
