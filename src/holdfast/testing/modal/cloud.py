"""A counterpart of Modal on this machine: its gRPC API on a loopback port, over real local boxes."""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Collection, Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import jwt
from grpclib import GRPCError, Status
from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec
from modal_proto.api_grpc import ModalClientBase
from modal_proto.task_command_router_grpc import TaskCommandRouterBase

from holdfast.providers.local import LocalProvider
from holdfast.testing.modal.command_router import CommandRouter
from holdfast.testing.modal.control_plane import ControlPlane
from holdfast.testing.modal.faults import Fault, Faults
from holdfast.testing.modal.sandboxes import Result, Sandbox
from holdfast.testing.modal.service import Service
from holdfast.testing.modal.state import CloudState, Prepare
from holdfast.testing.modal.tunnels import make_certificate, server_context

REGISTRY: Final = ("debian", "python", "ubuntu")
"""The images that can be pulled, with any tag. Each is a plain local box."""
_HOST: Final = "127.0.0.1"
_OPEN_SECONDS: Final = 60.0
_T = TypeVar("_T")


class ModalCloud:
    """Owned by the caller, usually with `async with`. Its sandboxes end with it.

    The vendor's SDK uses it with `MODAL_SERVER_URL=url`, `MODAL_TOKEN_ID=token_id` and
    `MODAL_TOKEN_SECRET=token_secret`. Sandboxes have no network, whatever they ask for; `Sandbox.network` has what that
    was.
    """

    def __init__(self, home: Path, *, registry: Collection[str] = REGISTRY, prepare: Prepare | None = None) -> None:
        """`home` is where the local boxes are kept. `prepare` is called with the local box of each sandbox that begins
        with an image of the registry, to put into it what such an image should have.
        """
        self.token_id = f"ak-{secrets.token_hex(11)}"
        self.token_secret = f"as-{secrets.token_hex(11)}"
        self.url = ""
        self.faults = Faults()
        self._local = LocalProvider(home)
        self.state = CloudState(self._local, registry, server_context(make_certificate()), prepare)
        self._servers: list[Server] = []
        self._services: list[Service] = []
        self.calls: dict[str, list[str]] = {}
        """The methods that were called, of the control plane and of the router."""

    async def __aenter__(self) -> Self:
        await self._local.open()
        try:
            plane = Service(ModalClientBase, ControlPlane(self.state).handlers(), self.faults, self._check_account)
            router = Service(TaskCommandRouterBase, CommandRouter(self.state).handlers(), self.faults, self._check_task)
            self._services = [plane, router]
            self.calls = {"control plane": plane.calls, "router": router.calls}
            self.url = await self._serve(plane)
            self.state.router_url = await self._serve(router)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def _serve(self, service: Service) -> str:
        server = Server([service], status_details_codec=custom_detail_codec)
        await server.start(_HOST, 0, family=socket.AF_INET)
        self._servers.append(server)
        assert isinstance(server._server, asyncio.Server)
        return f"http://{_HOST}:{server._server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await asyncio.gather(*(each.close() for each in self.state.sandboxes.values()), return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()
        await self._local.close()

    def _check_account(self, method: str, metadata: Mapping[str, Any]) -> None:
        if (metadata.get("x-modal-token-id"), metadata.get("x-modal-token-secret")) != (
            self.token_id,
            self.token_secret,
        ):
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")

    def _check_task(self, method: str, metadata: Mapping[str, Any]) -> None:
        token = str(metadata.get("authorization", "")).removeprefix("Bearer ")
        try:
            jwt.decode(token, self.state.secret, algorithms=["HS256"])
        except jwt.InvalidTokenError as error:
            raise GRPCError(Status.UNAUTHENTICATED, str(error)) from None

    # --- faults ---

    @property
    def running(self) -> list[Sandbox]:
        return [each for each in self.state.sandboxes.values() if each.result is None]

    def cut(self) -> None:
        """Cut all connections, even in the middle of a message."""
        for service in self._services:
            service.cut()

    def freeze_list(self) -> None:
        """From now on, list the sandboxes that run now, even when they have ended."""
        self.state.stale_list = self.running

    def thaw_list(self) -> None:
        self.state.stale_list = None

    async def finish(self, sandbox: Sandbox) -> None:
        """End a sandbox in the same way as its time limit."""
        await sandbox.finish(Result(status=Result.GENERIC_STATUS_TIMEOUT, exitcode=124))


class ModalCloudThread:
    """A `ModalCloud` in a thread of its own, for tests that are not async."""

    def __init__(self, home: Path, **options: Any) -> None:
        self._home = home
        self._options = options
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="holdfast-modal", daemon=True)
        self.cloud: ModalCloud

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        future: Future[_T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(_OPEN_SECONDS)

    def add_fault(self, fault: Fault) -> None:
        self._loop.call_soon_threadsafe(self.cloud.faults.add, fault)

    async def _open(self) -> None:
        self.cloud = ModalCloud(self._home, **self._options)
        await self.cloud.__aenter__()

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.cloud.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_OPEN_SECONDS)
        self._loop.close()
