"""A proxy on loopback between the vendor's SDK and a server, which misbehaves as a cloud does, when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

FOREVER = 10**9


@dataclass(slots=True)
class Fault:
    """What happens to the next requests with this method and path."""

    method: str = ".*"
    path: str = ".*"
    times: int = 1
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    """How long the answer takes."""
    cut: bool = False
    """The answer is cut off in the middle."""
    passes: bool = False
    """The request is carried out before it is refused or cut off."""
    change: Callable[[Any], Any] | None = None
    """Changes the document of the answer."""
    seen: int = 0

    def fits(self, method: str, path: str) -> bool:
        return self.times > 0 and bool(re.fullmatch(self.method, method)) and bool(re.search(self.path, path))


class FaultyProxy:
    """Passes everything on to `upstream`, but for its faults."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self._faults: list[Fault] = []
        self._sockets: set[web.WebSocketResponse] = set()
        self.url = ""
        self.requests: list[tuple[str, str]] = []
        self.headers: dict[str, str] = {}
        """Those of the last request."""
        self.bodies: dict[str, bytes] = {}
        """The last body that was sent to each path."""

    def add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def clear(self) -> None:
        self._faults.clear()

    def cut(self) -> int:
        """Cut off all WebSockets, as a lost network does: nobody is told. Returns how many there were."""
        sockets = list(self._sockets)
        for socket in sockets:
            transport = socket._req.transport if socket._req is not None else None
            if transport is not None:
                transport.abort()
        return len(sockets)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            auto_decompress=False, timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
        )
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()
        await self._runner.cleanup()
        await self._session.close()

    def _fault(self, method: str, path: str) -> Fault | None:
        for fault in self._faults:
            if fault.fits(method, path):
                fault.times -= 1
                fault.seen += 1
                return fault
        return None

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_socket = request.headers.get("upgrade", "").lower() == "websocket"
        method = "WEBSOCKET" if is_socket else request.method
        self.requests.append((method, request.path))
        self.headers = {name.lower(): value for name, value in request.headers.items()}
        if method in ("POST", "PUT"):
            self.bodies[request.path] = await request.read()
        fault = self._fault(method, request.path)
        if fault is not None:
            await asyncio.sleep(fault.seconds)
            if fault.status is not None and not fault.passes:
                return _refusal(fault)
        return await (self._relay(request) if is_socket else self._pass_on(request, fault))

    async def _pass_on(self, request: web.Request, fault: Fault | None) -> web.StreamResponse:
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("connection",)}
        async with self._session.request(
            request.method, self._upstream + request.raw_path, headers=headers, data=await request.read()
        ) as answer:
            body = await answer.read()
            kept = {name: answer.headers[name] for name in ("content-type", "retry-after") if name in answer.headers}
        if fault is not None and fault.status is not None:
            return _refusal(fault)
        if fault is not None and fault.change is not None:
            body = json.dumps(fault.change(json.loads(body))).encode()
        response = web.StreamResponse(status=answer.status, headers=kept)
        response.content_length = len(body)
        await response.prepare(request)
        if fault is not None and fault.cut:
            await response.write(body[: len(body) // 2])
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(body)
        return response

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        protocols = [each.strip() for each in request.headers.get("sec-websocket-protocol", "").split(",") if each]
        headers = {name: request.headers[name] for name in ("authorization", "host") if name in request.headers}
        try:
            theirs = await self._session.ws_connect(
                self._upstream + request.raw_path, headers=headers, protocols=protocols, max_msg_size=0
            )
        except aiohttp.WSServerHandshakeError as error:
            return web.Response(status=error.status)
        ours = web.WebSocketResponse(protocols=protocols[:1], max_msg_size=0)
        await ours.prepare(request)
        self._sockets.add(ours)
        tasks = [asyncio.create_task(_copy(ours, theirs)), asyncio.create_task(_copy(theirs, ours))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._sockets.discard(ours)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await theirs.close()
        return ours


async def _copy(source: Any, sink: Any) -> None:
    with contextlib.suppress(ConnectionError, RuntimeError):
        while True:
            message = await source.receive()
            if message.type is aiohttp.WSMsgType.TEXT:
                await sink.send_str(message.data)
            elif message.type is aiohttp.WSMsgType.BINARY:
                await sink.send_bytes(message.data)
            else:
                if message.type is aiohttp.WSMsgType.CLOSE:
                    await sink.close(code=message.data or 1000, message=(message.extra or "").encode())
                return


def _refusal(fault: Fault) -> web.Response:
    assert fault.status is not None
    body = {"statusCode": fault.status, "message": "told to fail", "code": "FAULT", **fault.body}
    return web.json_response(body, status=fault.status, headers=fault.headers)
