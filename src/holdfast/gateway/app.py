"""The gateway as an ASGI app: pages and programs of sessions over HTTP, terminals over WebSocket.

WebSockets of programs are forwarded below ASGI, byte for byte: a server hands such a connection to
`proxy.upgrade.UpgradedConnection`, with the site that `Gateway.site` returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from holdfast.api.box.process import Process
from holdfast.api.errors import HoldfastError, InvalidRequest, NotFound
from holdfast.api.errors.boxes import BoxError, ProcessLost
from holdfast.gateway.access import GatewayAccess
from holdfast.gateway.hosts import SessionHost, SessionHosts
from holdfast.gateway.open_boxes import OpenBoxes
from holdfast.gateway.proxy.headers import Header, first
from holdfast.gateway.proxy.kept_connections import KeptConnections
from holdfast.gateway.proxy.relay import Relay
from holdfast.gateway.proxy.site import refusal
from holdfast.gateway.routes import TERMINAL_SOCKET
from holdfast.gateway.sessions import Sessions, SessionView
from holdfast.gateway.site import NotReady, SessionSite, check_origin
from holdfast.gateway.terminal import protocol as protocol
from holdfast.gateway.terminal.terminals import MAIN, Terminals, check_name, follow, replay_of
from holdfast.gateway.uses import Use, may
from holdfast.gateway.visitors import Visitor
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

_HELLO_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 10.0
_EXIT_SECONDS: Final = 30.0
_MAX_FRAME: Final = 64 * 1024
_DENIED: Final = 1008
_FAILED: Final = 1011


class _Left(Exception):
    """The client has left."""


@dataclass(slots=True)
class Gateway:
    """The gateway of all sessions of a server."""

    sessions: Sessions
    access: GatewayAccess
    hosts: SessionHosts
    terminals: Terminals
    relay: Relay
    boxes: OpenBoxes
    kept: KeptConnections

    def site(self, host: SessionHost, path: bytes) -> SessionSite:
        """What a request to a host name of a session leads to. `path` is as in the request, still quoted."""
        return SessionSite(self, host, path)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        host = self.hosts.named(first(scope["headers"], b"host") or b"")
        if host is None:
            raise ValueError("this request is not for a session")
        if scope["type"] == "websocket":
            await self._serve_socket(host, WebSocket(scope, receive, send))
        else:
            await self.relay.serve(self.site(host, scope["raw_path"]), scope, receive, send)

    # --- terminals ---

    async def _serve_socket(self, host: SessionHost, socket: WebSocket) -> None:
        """Let the client in, and report how it ended: before the terminal is open, as a plain answer."""
        headers: list[Header] = socket.scope["headers"]
        site = self.site(host, socket.scope["raw_path"])
        try:
            if host.tunnel is not None or socket.scope["raw_path"] != TERMINAL_SOCKET:
                raise NotFound("there is no WebSocket here")
            check_origin("GET", headers, upgrade=True)
            session, visitor, _ = await site.identify(headers)
            if protocol.SUBPROTOCOL not in socket.scope.get("subprotocols", ()):
                raise InvalidRequest(f"a terminal needs the subprotocol {protocol.SUBPROTOCOL!r}")
            async with self.access.present(session, visitor):
                await self._serve_terminal(socket, session, visitor)
        except (_Left, WebSocketDisconnect):
            return
        except Exception as error:
            with contextlib.suppress(WebSocketDisconnect, RuntimeError):
                if socket.application_state is WebSocketState.CONNECTED:
                    await _close(socket, *_ending(error))
                else:
                    reply = refusal(error, "")
                    pairs = {name.decode(): value.decode("latin-1") for name, value in reply.headers}
                    await socket.send_denial_response(Response(reply.body, reply.status, pairs))

    async def _serve_terminal(self, socket: WebSocket, session: SessionView, visitor: Visitor) -> None:
        parameters = parse_qs(socket.scope["query_string"].decode("latin-1"), max_num_fields=32)
        name = check_name(parameters.get("name", [MAIN])[0])
        if session.box is None:
            raise NotReady("The terminal", session, "it has no box now")
        types = may(visitor.role, Use.TYPE)
        async with self.sessions.open_box(session) as box:
            await socket.accept(subprotocol=protocol.SUBPROTOCOL)
            try:
                async with time_limit(_HELLO_SECONDS):
                    hello = protocol.parse_hello(await _receive(socket))
            except TimeoutError:
                raise InvalidRequest("the first message did not arrive in time") from None
            visitor.check_not_over()
            process = await self.terminals.open(box, name, hello, may_start=types)
            if types:
                with contextlib.suppress(BoxError, OSError):
                    await process.resize(hello.rows, hello.columns)
            start, end = await replay_of(process, hello.offset)
            await socket.send_bytes(protocol.title(f"{name} · {session.id}"))
            flowing = asyncio.Event()
            flowing.set()
            down = _send_output(socket, process, start, end, flowing)
            up = _take_input(socket, process, flowing, visitor.over, types=types)
            if await _until_ended(down, up, visitor.over):
                await _close(socket, 1000, f"the shell ended with {await _exit_code(process)}")
            else:
                await _close(socket, _DENIED, "this session is no longer open to you")


async def _send_output(socket: WebSocket, process: Process, start: int, end: int, flowing: asyncio.Event) -> None:
    """Send output from an offset on, as fast as the client takes it. What it has not taken stays in the box. Up to
    `end`, it was there before the client."""
    await socket.send_bytes(protocol.preferences(start, end))  # also where nothing follows for long
    expected = start
    async for chunk in follow(process, start):
        if chunk.offset != expected:  # after output that was too old to be kept
            await socket.send_bytes(protocol.preferences(chunk.offset, end))
        expected = chunk.next_offset
        for begin in range(0, len(chunk.data), _MAX_FRAME):
            await flowing.wait()
            await socket.send_bytes(protocol.OUTPUT + chunk.data[begin : begin + _MAX_FRAME])


async def _take_input(
    socket: WebSocket, process: Process, flowing: asyncio.Event, over: asyncio.Future[None], *, types: bool
) -> None:
    """Pass on what the client types, until it leaves. What a viewer types is dropped here."""
    while True:
        message = protocol.parse(await _receive(socket))
        if over.done():
            return
        try:
            match message:
                case protocol.Flow(paused):
                    (flowing.clear if paused else flowing.set)()
                case protocol.Input(data) if types and data:
                    await process.write(data)
                case protocol.Resize(columns, rows) if types:
                    await process.resize(rows, columns)
        except (BoxError, OSError):
            continue  # it has ended: what it printed is still worth sending


async def _until_ended(down: Any, up: Any, over: asyncio.Future[None]) -> bool:
    """Run both until the output has ended, which returns True, or the visitor may no longer be here. Raises what `up`
    raises, for example because the client leaves."""
    downward, upward = asyncio.create_task(down), asyncio.create_task(up)
    try:
        await asyncio.wait((downward, upward, over), return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            return False
        if downward.done():
            downward.result()
            return True
        upward.result()
        return True
    finally:
        for task in (downward, upward):
            task.cancel()
        await asyncio.gather(downward, upward, return_exceptions=True)


async def _receive(socket: WebSocket) -> bytes:
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise _Left
    text = message.get("text")
    return text.encode() if text is not None else bytes(message["bytes"])


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    """Close a socket. Does nothing if the client has left."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
        async with time_limit(_CLOSE_SECONDS):
            await socket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))


async def _exit_code(process: Process) -> str:
    try:
        return f"exit code {await process.wait(_EXIT_SECONDS)}"
    except (BoxError, ProcessLost, TimeoutError):
        return "an unknown exit code"


def _ending(error: Exception) -> tuple[int, str]:
    if isinstance(error, HoldfastError):
        return _DENIED, error.message
    log.error("a terminal failed", exc_info=error)
    return _FAILED, "the server failed; its log has details"
