"""A client may leave at any moment, also before its WebSocket is accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from holdfast.server.wire.uvicorn_adapter import HttpToolsProtocol, ServerState, make_config
from holdfast.server.wire.websocket_protocol import WebSocketProtocol
from holdfast.server.wire.websockets import Left, receive

pytestmark = pytest.mark.anyio
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


async def accepts_and_reads(socket: WebSocket) -> None:
    await socket.accept()
    with pytest.raises(Left):
        await receive(socket)


async def accepts_and_writes(socket: WebSocket) -> None:
    await socket.accept()
    with pytest.raises(WebSocketDisconnect):
        await socket.send_text("too late")


async def denies(socket: WebSocket) -> None:
    await socket.send_denial_response(PlainTextResponse("no", 403))


@pytest.mark.parametrize("work", [accepts_and_reads, accepts_and_writes, denies])
async def test_one_that_leaves_before_it_is_accepted_is_no_error(
    work: Callable[[WebSocket], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            await scope["state"]["lost"].wait()
            await work(WebSocket(scope, receive, send))
            ended.set_result(None)
        except BaseException as error:
            ended.set_exception(error)

    config = make_config(app, HttpToolsProtocol)
    config.load()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: WebSocketProtocol(config, ServerState(), {}), "127.0.0.1", 0)
    async with server, asyncio.timeout(240):
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(HANDSHAKE)
        await writer.drain()
        writer.close()
        await ended
    assert [each for each in caplog.records if each.levelname in ("ERROR", "CRITICAL")] == []
