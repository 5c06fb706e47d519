"""Completions over one WebSocket, which is much cheaper than a request for each.

Text frames, JSON: `{"id", "messages", "model", "timeoutSeconds"}` asks, `{"id", "completion"}` or `{"id", "status",
"error"}` answers, in any order; `{"id", "cancel": true}` cancels one, which then gets no answer. All requests in
progress are cancelled when the client leaves or the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

import orjson
from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from pydantic import TypeAdapter, ValidationError

from holdfast.api.errors import InvalidRequest, Refused
from holdfast.api.model.models import Complete, ModelAnswer
from holdfast.server.routes.model.models import completion_of
from holdfast.server.routes.services import Services
from holdfast.server.telemetry import logs
from holdfast.server.wire.websockets import answer_to, check_administer, problems_of, receive, serve

AT_ONCE: Final = 64
"""Most completions in progress on one socket."""
MAX_WAITING: Final = 192
"""Most completions that wait for their turn. More are refused."""
_MAX_ID: Final = 64
_COMPLETE: Final = TypeAdapter(Complete)

router = APIRouter(prefix="/v1")


class TooManyAtOnce(Refused):
    """The socket has too many requests in progress."""

    status = 429
    code = "too_many_requests"


class WrongFields(InvalidRequest):
    """A frame is not a valid request."""

    status = 422


@router.websocket("/completions/socket")
async def completion_socket(socket: WebSocket) -> None:
    """Ask models, with many requests at once."""

    async def work(services: Services) -> None:
        await socket.accept()
        await _Asking(socket, services).take_frames()

    await serve(socket, work)


class _Asking:
    """One client, and its requests in progress: a task for each id that the client chose."""

    def __init__(self, socket: WebSocket, services: Services) -> None:
        self._socket = socket
        self._services = services
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._run = f"completion {logs.request_id.get()}"

    async def take_frames(self) -> None:
        """Serve until the client leaves, or sends something that cannot be answered."""
        try:
            while True:
                id, wanted = _read(await receive(self._socket))
                if "cancel" in wanted:
                    self._cancel(id, wanted)
                elif id in self._tasks:
                    raise InvalidRequest(
                        f"a request with the id {id!r} is already in progress", hint="give each request its own id"
                    )
                elif len(self._tasks) >= AT_ONCE + MAX_WAITING:
                    await self._refuse(id)  # awaited here, so that a client that reads no answers is not read either
                else:
                    task = self._tasks[id] = asyncio.create_task(self._answer(id, wanted))
                    task.add_done_callback(lambda _, id=id: self._tasks.pop(id))  # type: ignore[misc]
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel(self, id: str, document: dict[str, Any]) -> None:
        if document != {"cancel": True}:
            raise InvalidRequest('a frame that cancels a request has the form {"id": "1", "cancel": true}')
        if id in self._tasks:  # otherwise its answer is already being sent
            self._tasks[id].cancel()

    async def _answer(self, id: str, wanted: dict[str, Any]) -> None:
        logs.request_id.set(self._services.next_request_id())
        status = 499
        try:
            status, document = await self._outcome(wanted)
            await self._send(id, document)
        finally:
            self._services.metrics.count("POST", status)

    async def _outcome(self, wanted: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        try:
            completion = await self._complete(wanted)
        except Exception as error:
            return _refused(error)
        return 200, {"completion": completion.to_json()}

    async def _complete(self, wanted: dict[str, Any]) -> ModelAnswer:
        await check_administer(self._socket, self._services)
        try:
            request = _COMPLETE.validate_python(wanted)
        except ValidationError as error:
            raise WrongFields(problems_of(error)) from None
        async with self._turns:
            return await completion_of(self._services, await self._services.models.get(), request, run=self._run)

    async def _refuse(self, id: str) -> None:
        most = AT_ONCE + MAX_WAITING
        status, document = _refused(
            TooManyAtOnce(f"{most} completions are already in progress on this socket", hint="wait for some of them")
        )
        self._services.metrics.count("POST", status)
        await self._send(id, document)

    async def _send(self, id: str, document: dict[str, Any]) -> None:
        """Send. Waits for a slow client."""
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client has left, which the reader notices
            await self._socket.send_text(orjson.dumps({"id": id, **document}).decode())


def _read(frame: str | bytes) -> tuple[str, dict[str, Any]]:
    """Return the id of a frame, and its other fields."""
    if not isinstance(frame, str):
        raise InvalidRequest("frames must be text: JSON with an id")
    try:
        document = orjson.loads(frame)
    except ValueError as error:
        raise InvalidRequest(f"a frame is not valid JSON: {error}") from None
    id = document.pop("id", None) if isinstance(document, dict) else None
    if not isinstance(id, str) or not 1 <= len(id) <= _MAX_ID:
        raise InvalidRequest(f"a frame must be an object with an id of 1 to {_MAX_ID} characters")
    return id, document


def _refused(error: Exception) -> tuple[int, dict[str, Any]]:
    answer = answer_to(error)
    return answer.status_code, {"status": answer.status_code, **orjson.loads(bytes(answer.body))}
