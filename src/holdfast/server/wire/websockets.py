"""What WebSockets share: authentication and endings. A refusal is a plain HTTP answer to the handshake."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import WebSocket, WebSocketDisconnect
from pydantic import ValidationError
from starlette.responses import Response
from starlette.websockets import WebSocketState

from holdfast.api.errors import HoldfastError
from holdfast.api.errors.boxes import BoxError
from holdfast.api.problems import describe_problems
from holdfast.server.routes.roles import SOCKET
from holdfast.server.routes.services import Services, check_route, services_of
from holdfast.server.telemetry import logs
from holdfast.server.wire.login_cookie import login_of
from holdfast.server.wire.middleware import failure, refusal
from holdfast.threads.access.credentials import Grant
from holdfast.time_limit import time_limit

_SEND_SECONDS: Final = 10.0


class Left(Exception):
    """The client has left."""


async def serve(socket: WebSocket, work: Callable[[Services], Awaitable[None]]) -> None:
    """Authenticate the client, run `work`, and report how it ended.

    An error before `work` accepts is the answer to the handshake; a later one is the last text frame. That the client's
    credential is revoked is such an error.
    """
    services = services_of(socket)
    request_id = services.next_request_id()
    token = logs.request_id.set(request_id)
    try:
        services.origins.check(dict(socket.scope["headers"]))
        credential, grant = await check_administer(socket, services)
        async with services.access.while_granted(credential, grant):
            await work(services)
    except (Left, WebSocketDisconnect):
        pass
    except Exception as error:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client may have left meanwhile
            if socket.application_state is WebSocketState.CONNECTED:
                await _end_with(socket, error, request_id)
            else:
                await _deny(socket, error, request_id, services)
                return
    finally:
        logs.request_id.reset(token)
    if socket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await socket.close(1000)


async def check_administer(socket: WebSocket, services: Services) -> tuple[str | None, Grant]:
    """Returns the credential of a socket and what it allows. Raises if that is not enough for this route."""
    credential = _bearer(socket) or login_of(dict(socket.headers.raw), "GET", services.public_url)
    grant = await services.access.grant(credential)
    grant.check_administer()
    check_route(grant, SOCKET, socket, services)
    return credential, grant


def answer_to(error: Exception) -> Response:
    """The answer as in HTTP."""
    return refusal(error) if isinstance(error, HoldfastError) else failure(error)


async def receive(socket: WebSocket) -> str | bytes:
    """Return the next frame. Raises `Left`."""
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise Left
    text = message.get("text")
    return text if text is not None else bytes(message["bytes"])


def problems_of(error: ValidationError) -> str:
    """The first few problems, each with its field."""
    return describe_problems(error.errors())


async def _deny(socket: WebSocket, error: Exception, request_id: str, services: Services) -> None:
    answer = answer_to(error)
    answer.headers["x-request-id"] = request_id
    services.metrics.count("GET", answer.status_code)
    await socket.send_denial_response(answer)


async def _end_with(socket: WebSocket, error: Exception, request_id: str) -> None:
    document = json.loads(bytes(answer_to(error).body))
    document["error"]["requestId"] = request_id
    code = 1000 if isinstance(error, BoxError) else 1008 if isinstance(error, HoldfastError) else 1011
    async with time_limit(_SEND_SECONDS):
        await socket.send_text(json.dumps(document))
        await socket.close(code)


def _bearer(socket: WebSocket) -> str | None:
    scheme, _, credential = socket.headers.get("authorization", "").partition(" ")
    return credential.strip() or None if scheme.lower() == "bearer" else None
