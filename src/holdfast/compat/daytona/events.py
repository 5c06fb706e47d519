"""State changes of sandboxes as the SDKs listen for them: Socket.IO over a WebSocket, the few parts that they use.

Engine.IO messages begin with a digit: 0 opens, 2 is a ping, 3 its answer, 4 a Socket.IO message. Those have a second
digit: 40 connects, 42 is an event. Without this socket, each call of an SDK would try to connect once more.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Final

from starlette.websockets import WebSocket

from holdfast.api.errors import Refused
from holdfast.compat.daytona.http.errors import ApiError
from holdfast.compat.daytona.http.websockets import Left, both, close, receive, serve
from holdfast.compat.daytona.sandbox_record import Sandbox, sandbox_json
from holdfast.compat.daytona.service import daytona_of, toolbox_url
from holdfast.time_limit import time_limit

_PING_SECONDS: Final = 25.0
_CONNECT_SECONDS: Final = 30.0
_WAITING: Final = 1000


async def serve_events(socket: WebSocket) -> None:
    await serve(socket, lambda: _serve(socket))


async def _serve(socket: WebSocket) -> None:
    if socket.query_params.get("transport") != "websocket":
        raise ApiError(400, "events come over a WebSocket only")
    await socket.accept()
    ping = int(_PING_SECONDS * 1000)
    opening = {
        "sid": secrets.token_hex(10),
        "upgrades": [],
        "pingInterval": ping,
        "pingTimeout": ping,
        "maxPayload": 65_536,
    }
    await socket.send_text("0" + json.dumps(opening))
    try:
        async with time_limit(_CONNECT_SECONDS):
            first = await receive(socket)
    except TimeoutError:
        await close(socket, 1008, "no connection was asked for")
        return
    token = _token(first)
    daytona = await daytona_of(socket).of_tenant(token)  # the handshake names no tenant: the key comes only now
    try:
        grant = await daytona.grant_to(socket, token)
    except Refused as error:
        await socket.send_text("44" + json.dumps({"message": error.message}))
        await close(socket, 1008, "unauthorized")
        return
    await socket.send_text("40" + json.dumps({"sid": secrets.token_hex(10)}))
    parts = await daytona.parts()
    waiting: asyncio.Queue[str] = asyncio.Queue(_WAITING)

    def listener(sandbox: Sandbox, state: str) -> None:
        shown = sandbox_json(sandbox, parts.organization, toolbox_url(socket), state=state)
        message = "42" + json.dumps(["sandbox.state.updated", {"sandbox": shown, "newState": state}])
        if not waiting.full():  # who does not keep up asks for the state anyway
            waiting.put_nowait(message)

    async with daytona.needs.access.while_granted(token, grant):
        with parts.sandboxes.listening(listener):
            await both(daytona.until_closed(), both(_send(socket, waiting), _receive(socket)))
    await close(socket, 1001, "this API is closed")


def _token(message: str | bytes) -> str | None:
    """The API key in the message that connects: `40{"token": ...}`."""
    if not isinstance(message, str) or not message.startswith("40") or len(message) > 65_536:
        return None
    try:
        told = json.loads(message[2:].lstrip(","))
    except (ValueError, RecursionError):
        return None
    token = told.get("token") if isinstance(told, dict) else None
    return token if isinstance(token, str) else None


async def _send(socket: WebSocket, waiting: asyncio.Queue[str]) -> None:
    while True:
        try:
            async with time_limit(_PING_SECONDS):
                message = await waiting.get()
        except TimeoutError:
            message = "2"
        await socket.send_text(message)


async def _receive(socket: WebSocket) -> None:
    while True:
        message = await receive(socket)
        if message == "2":
            await socket.send_text("3")
        elif isinstance(message, str) and message[:2] in ("1", "41"):
            await close(socket)
            raise Left
