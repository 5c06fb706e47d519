"""The routes of the Sprites API, as its documentation and the vendor's SDK show it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from holdfast.api.box.process import Connection
from holdfast.api.errors.boxes import BoxError, CannotExecute, ConnectRefused, FileProblem
from holdfast.egress import EgressProxy
from holdfast.providers.local import LocalProvider
from holdfast.testing.sprites import files
from holdfast.testing.sprites.faults import Faults
from holdfast.testing.sprites.network import CannotApply
from holdfast.testing.sprites.services import Service
from holdfast.testing.sprites.sessions import CANNOT_EXECUTE, EXIT, STDERR, STDOUT, Session
from holdfast.testing.sprites.sprite import Prepare, Sprite

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_MAX_PAGE: Final = 50
_RUN_AFTER: Final = 10.0
"""Seconds that a command without a terminal runs on after a disconnect."""
_MAX_LABELS: Final = 64
_MAX_LABEL: Final = 255
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}

Handler = Callable[[Sprite, Request], Awaitable[Response]]


def _error(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": code, "message": message}, status)


def _lines(*events: dict[str, Any]) -> Response:
    return Response("".join(json.dumps(each) + "\n" for each in events), media_type="application/x-ndjson")


def _seconds(text: str | None) -> float | None:
    """Reads a duration such as `10s`. Zero means forever, as None."""
    if text is None:
        return _RUN_AFTER
    match = re.fullmatch(r"([0-9.]+)(ms|s|m|h)?", text)
    seconds = float(match[1]) * _UNITS[match[2] or "s"] if match else _RUN_AFTER
    return seconds or None


class SpritesApp:
    """All sprites of one organization, and the API that serves them."""

    def __init__(
        self,
        provider: LocalProvider,
        egress: EgressProxy,
        token: str,
        faults: Faults,
        environment: Mapping[str, str],
        prepare: Prepare | None,
    ) -> None:
        self._environment = environment
        self._provider = provider
        self._egress = egress
        self._token = token
        self._faults = faults
        self._prepare = prepare
        self.sprites: dict[str, Sprite] = {}
        self._creating: set[str] = set()
        self._stale: list[dict[str, Any]] | None = None

    def asgi(self) -> Starlette:
        base = "/v1/sprites/{name}"
        routes = [
            Route("/v1/sprites", self._authorized(self._list_sprites), methods=["GET"]),
            Route("/v1/sprites", self._authorized(self._create_sprite), methods=["POST"]),
            Route(base, self._of_sprite(self._sprite), methods=["GET", "PUT", "DELETE"]),
            Route(f"{base}/upgrade", self._of_sprite(self._upgrade), methods=["POST"]),
            Route(f"{base}/exec", self._of_sprite(self._sessions), methods=["GET"]),
            Route(f"{base}/exec", self._of_sprite(self._exec), methods=["POST"]),
            Route(f"{base}/exec/{{session}}/kill", self._of_sprite(self._kill), methods=["POST"]),
            Route(f"{base}/checkpoint", self._of_sprite(self._checkpoint), methods=["POST"]),
            Route(f"{base}/checkpoints", self._of_sprite(self._checkpoints), methods=["GET"]),
            Route(f"{base}/checkpoints/{{id}}", self._of_sprite(self._one_checkpoint), methods=["GET", "DELETE"]),
            Route(f"{base}/checkpoints/{{id}}/restore", self._of_sprite(self._restore), methods=["POST"]),
            Route(f"{base}/policy/network", self._of_sprite(self._policy), methods=["GET", "POST"]),
            Route(f"{base}/services", self._of_sprite(self._services), methods=["GET"]),
            Route(f"{base}/services/signal", self._of_sprite(self._signal), methods=["POST"]),
            Route(f"{base}/services/{{service}}", self._of_sprite(self._service), methods=["GET", "PUT", "DELETE"]),
            Route(f"{base}/services/{{service}}/{{what}}", self._of_sprite(self._switch), methods=["POST"]),
            Route(f"{base}/fs/{{operation}}", self._of_sprite(self._files), methods=["GET", "PUT", "POST", "DELETE"]),
            WebSocketRoute(f"{base}/exec", self._exec_socket),
            WebSocketRoute(f"{base}/exec/{{session}}", self._attach_socket),
            WebSocketRoute(f"{base}/proxy", self._proxy_socket),
        ]
        return Starlette(routes=routes)

    async def close(self) -> None:
        await asyncio.gather(*(each.delete() for each in self.sprites.values()))
        self.sprites.clear()

    # --- who asks, for what ---

    def _authorized(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            if request.headers.get("authorization") != f"Bearer {self._token}":
                return _error(401, "unauthorized", "the token is not valid")
            try:
                return await handler(request)
            except FileProblem as error:
                return files.problem(error)
            except BoxError as error:
                return _error(500, "internal", error.message)

        return endpoint

    def _of_sprite(self, handler: Handler) -> Callable[..., Awaitable[Response]]:
        async def found(request: Request) -> Response:
            sprite = self.sprites.get(request.path_params["name"])
            if sprite is None:
                return _error(404, "not_found", "there is no such sprite")
            return await handler(sprite, request)

        return self._authorized(found)

    async def _accept(self, websocket: WebSocket) -> Sprite | None:
        """Returns the sprite of a WebSocket, or refuses it."""
        if websocket.headers.get("authorization") != f"Bearer {self._token}":
            await websocket.send_denial_response(_error(401, "unauthorized", "the token is not valid"))
            return None
        sprite = self.sprites.get(websocket.path_params["name"])
        if sprite is None:
            await websocket.send_denial_response(_error(404, "not_found", "there is no such sprite"))
        return sprite

    # --- sprites ---

    async def _list_sprites(self, request: Request) -> Response:
        query = request.query_params
        if not self._faults.stale_list or self._stale is None:
            self._stale = [each.describe() for each in sorted(self.sprites.values(), key=lambda each: each.name)]
        found = [each for each in self._stale if each["name"].startswith(query.get("prefix", ""))]
        start = int(query.get("continuation_token") or 0)
        size = min(int(query.get("max_results") or _MAX_PAGE), _MAX_PAGE)
        answer: dict[str, Any] = {"sprites": found[start : start + size], "has_more": start + size < len(found)}
        if answer["has_more"]:
            answer["next_continuation_token"] = str(start + size)
        return JSONResponse(answer)

    async def _create_sprite(self, request: Request) -> Response:
        told = await request.json()
        name, labels = told.get("name", ""), told.get("labels") or []
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            return _error(400, "invalid_name", "a name has lower-case letters, digits and hyphens, at most 63")
        if (refused := _check_labels(labels)) is not None:
            return refused
        if name in self.sprites or name in self._creating:
            return _error(409, "already_exists", f"sprite {name} already exists")
        self._creating.add(name)
        try:
            self.sprites[name] = await Sprite.create(
                self._provider, self._egress, name, list(labels), self._environment, self._prepare
            )
        finally:
            self._creating.discard(name)
        return JSONResponse(self.sprites[name].describe(), 201)

    async def _sprite(self, sprite: Sprite, request: Request) -> Response:
        if request.method == "DELETE":
            if self.sprites.pop(sprite.name, None) is not None:
                await sprite.delete()
            return Response(status_code=204)
        if request.method == "PUT":
            told = await request.json()
            if "labels" in told:
                if (refused := _check_labels(told["labels"])) is not None:
                    return refused
                sprite.labels = list(told["labels"])
            sprite.url_settings |= told.get("url_settings") or {}
        return JSONResponse(sprite.describe())

    async def _upgrade(self, sprite: Sprite, request: Request) -> Response:
        return Response(status_code=204)

    # --- commands ---

    async def _sessions(self, sprite: Sprite, request: Request) -> Response:
        active = [each.describe() for each in sprite.sessions.values() if each.active]
        return JSONResponse({"sessions": active, "count": len(active)})

    async def _exec(self, sprite: Sprite, request: Request) -> Response:
        query = request.query_params
        argv = query.getlist("cmd")
        env = query.getlist("env")
        if not argv:
            return _error(400, "missing_cmd", "a command is needed: cmd")
        box = await sprite.awake()
        command = ["env", "-i", *env, *argv] if env else argv
        body = await request.body()

        async def frames() -> AsyncIterator[bytes]:
            queue: asyncio.Queue[bytes] = asyncio.Queue(64)

            async def run() -> int:
                try:
                    done = await box.exec(
                        command,
                        cwd=query.get("dir"),
                        stdin=body,
                        on_stdout=lambda data: queue.put(bytes([STDOUT]) + data),
                        on_stderr=lambda data: queue.put(bytes([STDERR]) + data),
                    )
                except CannotExecute as error:
                    await queue.put(bytes([STDERR]) + error.message.encode())
                    return CANNOT_EXECUTE
                return done.exit_code

            running = asyncio.create_task(run())
            try:
                while not running.done() or not queue.empty():
                    taking = asyncio.ensure_future(queue.get())
                    await asyncio.wait({taking, running}, return_when=asyncio.FIRST_COMPLETED)
                    if taking.done():
                        yield taking.result()
                    else:
                        taking.cancel()
                yield bytes([EXIT, running.result() & 255])
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        return StreamingResponse(frames(), media_type="application/octet-stream")

    async def _kill(self, sprite: Sprite, request: Request) -> Response:
        session = sprite.sessions.pop(request.path_params["session"], None)
        if session is None:
            return _error(404, "not_found", "there is no such session")
        await session.end()
        return _lines({"type": "signal", "data": "SIGTERM"}, {"type": "complete", "data": "exited"})

    async def _exec_socket(self, websocket: WebSocket) -> None:
        sprite = await self._accept(websocket)
        if sprite is None:
            return
        query = websocket.query_params
        argv = query.getlist("cmd")
        if not argv:
            await websocket.send_denial_response(_error(400, "missing_cmd", "a command is needed: cmd"))
            return
        try:
            box = await sprite.awake()
        except BoxError as error:
            await websocket.send_denial_response(_error(503, "unavailable", error.message))
            return
        await websocket.accept()
        tty = query.get("tty") == "true"
        env = dict(each.partition("=")[::2] for each in query.getlist("env"))
        session = Session(box, argv, env=env, cwd=query.get("dir"), tty=tty)
        sprite.sessions[session.id] = session
        rows, columns = int(query.get("rows", 24)), int(query.get("cols", 80))
        session.start(rows, columns, stdin=query.get("stdin") == "true")
        after = query.get("max_run_after_disconnect")
        await self._serve(sprite, session, websocket, None if tty and after is None else _seconds(after))

    async def _attach_socket(self, websocket: WebSocket) -> None:
        sprite = await self._accept(websocket)
        if sprite is None:
            return
        session = sprite.sessions.get(websocket.path_params["session"])
        if session is None:
            await websocket.send_denial_response(_error(404, "not_found", "there is no such session"))
            return
        await websocket.accept()
        after = websocket.query_params.get("max_run_after_disconnect")
        await self._serve(sprite, session, websocket, None if session.tty and after is None else _seconds(after))

    async def _serve(self, sprite: Sprite, session: Session, websocket: WebSocket, run_after: float | None) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, OSError):
            await session.serve(websocket, run_after)
        if not session.active and session.delivered:
            sprite.sessions.pop(session.id, None)

    async def _proxy_socket(self, websocket: WebSocket) -> None:
        sprite = await self._accept(websocket)
        if sprite is None:
            return
        await websocket.accept()
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, ValueError, KeyError, TypeError, BoxError):
            told = json.loads(await websocket.receive_text())
            try:
                connection = await (await sprite.awake()).connect(int(told["port"]))
            except ConnectRefused as error:
                await websocket.send_json({"status": "error", "error": error.message})
                await websocket.close()
                return
            async with connection:
                await websocket.send_json({"status": "connected", "target": f"{told.get('host')}:{told['port']}"})
                await _relay(websocket, connection)

    # --- checkpoints ---

    async def _checkpoint(self, sprite: Sprite, request: Request) -> Response:
        body = await request.body()
        comment = (json.loads(body) if body else {}).get("comment") or ""
        try:
            made = await sprite.checkpoint(comment)
        except BoxError as error:
            return _lines({"type": "error", "error": error.message})
        return _lines(
            {"type": "info", "data": "Creating checkpoint..."},
            {"type": "info", "data": f"  ID: {made.id}"},
            {"type": "complete", "data": f"Checkpoint {made.id} created"},
        )

    async def _checkpoints(self, sprite: Sprite, request: Request) -> Response:
        return JSONResponse([each.describe() for each in reversed(sprite.checkpoints.values())])

    async def _one_checkpoint(self, sprite: Sprite, request: Request) -> Response:
        found = sprite.checkpoints.get(request.path_params["id"])
        if found is None:
            return _error(404, "not_found", "there is no such checkpoint")
        if request.method == "DELETE":
            await sprite.delete_checkpoint(found)
            return Response(status_code=204)
        return JSONResponse(found.describe())

    async def _restore(self, sprite: Sprite, request: Request) -> Response:
        found = sprite.checkpoints.get(request.path_params["id"])
        if found is None:
            return _error(404, "not_found", "there is no such checkpoint")
        await sprite.restore(found)
        return _lines({"type": "info", "data": "Restoring..."}, {"type": "complete", "data": f"Restored {found.id}"})

    # --- network, services, files ---

    async def _policy(self, sprite: Sprite, request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse({"rules": sprite.rules})
        try:
            await sprite.set_rules(list((await request.json())["rules"]))
        except (CannotApply, BoxError, KeyError, TypeError, ValueError) as error:
            return _error(400, "invalid_policy", str(error))
        return Response(status_code=204)

    async def _services(self, sprite: Sprite, request: Request) -> Response:
        return JSONResponse([each.describe() for each in sprite.services])

    async def _service(self, sprite: Sprite, request: Request) -> Response:
        name = request.path_params["service"]
        if request.method == "PUT":
            await sprite.awake()
            made = await sprite.services.put(name, await request.json())
            return _started(made)
        found = sprite.services.get(name)
        if found is None:
            return _error(404, "not_found", "there is no such service")
        if request.method == "DELETE":
            await sprite.services.remove(name)
            return Response(status_code=204)
        return JSONResponse(found.describe())

    async def _switch(self, sprite: Sprite, request: Request) -> Response:
        found = sprite.services.get(request.path_params["service"])
        if found is None or request.path_params["what"] not in ("start", "stop"):
            return _error(404, "not_found", "there is no such service")
        await sprite.awake()
        if request.path_params["what"] == "start":
            await sprite.services.start(found)
            return _started(found)
        await sprite.services.stop(found)
        return _lines({"type": "stopping", "timestamp": 0}, {"type": "stopped", "timestamp": 0})

    async def _signal(self, sprite: Sprite, request: Request) -> Response:
        import signal

        told = await request.json()
        found = sprite.services.get(told["name"])
        if found is None:
            return _error(404, "not_found", "there is no such service")
        if found.process is None:
            return _error(409, "not_running", "the service is not running")
        try:
            number = signal.Signals[told["signal"]]
        except KeyError:
            return _error(400, "invalid_signal", "there is no such signal")
        await found.process.signal(number)
        return Response(status_code=204)

    async def _files(self, sprite: Sprite, request: Request) -> Response:
        operation = files.OPERATIONS.get((request.method, request.path_params["operation"]))
        if operation is None:
            return _error(404, "not_found", "there is no such operation")
        return await operation(await sprite.awake(), request)


def _started(service: Service) -> Response:
    if service.status == "failed":
        return _lines({"type": "error", "data": service.error, "timestamp": 0})
    return _lines({"type": "started", "timestamp": 0}, {"type": "complete", "timestamp": 0})


def _check_labels(labels: Any) -> Response | None:
    if not isinstance(labels, list) or len(labels) > _MAX_LABELS:
        return _error(422, "invalid_labels", f"labels are a list of at most {_MAX_LABELS}")
    if not all(isinstance(each, str) and 0 < len(each) <= _MAX_LABEL for each in labels):
        return _error(422, "invalid_labels", f"a label has 1 to {_MAX_LABEL} characters")
    return None


async def _relay(websocket: WebSocket, connection: Connection) -> None:
    async def inward() -> None:
        while True:
            message = await websocket.receive()
            if message["type"] != "websocket.receive":
                return
            await connection.write(message.get("bytes") or (message.get("text") or "").encode())

    async def outward() -> None:
        while data := await connection.read():
            await websocket.send_bytes(data)
        await websocket.close()

    tasks = [asyncio.create_task(inward()), asyncio.create_task(outward())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
