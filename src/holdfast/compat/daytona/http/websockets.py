"""What the WebSockets of the API share: who is let in, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from holdfast.compat.daytona.http.errors import TOOLBOX, api_error, response
from holdfast.compat.daytona.service import bearer_of, daytona_of
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

MAX_FRAME: Final = 256 * 1024
_CLOSE_SECONDS: Final = 10.0


class Left(Exception):
    """The client is gone."""


async def serve(socket: WebSocket, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`, which accepts the socket. What fails before is answered in plain HTTP, what fails later closes it.
    So does the loss of the right to be here."""
    try:
        daytona = daytona_of(socket)
        daytona.needs.check_origin(dict(socket.scope["headers"]))
        credential, access = bearer_of(socket), daytona.needs.access
        if credential is None:
            await work()
        else:
            async with access.while_granted(credential, await access.grant(credential)):
                await work()
    except (Left, WebSocketDisconnect):
        return
    except Exception as error:
        shown = api_error(error)
        if shown.status >= 500 and shown.status != 501:
            log.error("a WebSocket of the Daytona API failed", exc_info=error)
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            if socket.application_state is WebSocketState.CONNECTED:
                await close(socket, 1011 if shown.status >= 500 else 1008, shown.message)
            else:
                await socket.send_denial_response(response(shown, TOOLBOX, socket.url.path, "GET"))


async def close(socket: WebSocket, code: int = 1000, reason: str = "") -> None:
    """Close a socket. Does nothing if the client has left."""
    if socket.application_state is not WebSocketState.CONNECTED:
        return
    with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
        async with time_limit(_CLOSE_SECONDS):
            await socket.close(code, reason.encode()[:120].decode("utf-8", "ignore"))


async def receive(socket: WebSocket) -> str | bytes:
    """Returns the next message. Raises `Left`."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise Left
    text = message.get("text")
    return text if text is not None else bytes(message["bytes"])


async def ignore(socket: WebSocket) -> None:
    """Read and drop messages until the client leaves. Raises `Left` then."""
    while True:
        await receive(socket)


async def both(down: Coroutine[Any, Any, None], up: Coroutine[Any, Any, None]) -> None:
    """Run both until `down` has ended. If `up` fails, as it does when the client leaves, that ends both."""
    downward, upward = asyncio.create_task(down), asyncio.create_task(up)
    try:
        await asyncio.wait((downward, upward), return_when=asyncio.FIRST_COMPLETED)
        if not downward.done():
            upward.result()
        await downward
    finally:
        for task in (downward, upward):
            task.cancel()
        await asyncio.gather(downward, upward, return_exceptions=True)
