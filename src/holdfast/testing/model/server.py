"""The scripted model: a server on loopback that answers coding agents from a script, without a real model."""

from __future__ import annotations

import asyncio
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

from holdfast.api.model.models import Api
from holdfast.loop_thread import LoopThread
from holdfast.testing.model.chat import Chat
from holdfast.testing.model.exchange import BodyUnreadable, Exchange, ModelConnection
from holdfast.testing.model.gates import Gate, Point
from holdfast.testing.model.messages import Messages
from holdfast.testing.model.reply import Piece, Reply, Wire
from holdfast.testing.model.requests import Request
from holdfast.testing.model.responses import Responses
from holdfast.testing.model.scripts import Script, Scripts
from holdfast.testing.model.steps import Scripted, Step
from holdfast.testing.model.tools import NoSuchTool, choose, offered_by
from holdfast.time_limit import time_limit

_PATIENCE: Final = 240.0
_MAX_KEPT: Final = 1000
_MAX_KEPT_BYTES: Final = 256 * 1024 * 1024
_MAX_VISITS: Final = 10_000

_PATHS: Final[Mapping[str, tuple[Api, type[Wire]]]] = {
    "/chat/completions": (Api.OPENAI_CHAT, Chat),
    "/responses": (Api.OPENAI_RESPONSES, Responses),
    "/messages": (Api.ANTHROPIC, Messages),
}


class ScriptedModel:
    """A model server on a free port of loopback, for the duration of its `with` block.

    `async with` serves on the running loop; `with` serves on a separate thread. All other methods may be called from
    anywhere. It supports OpenAI chat completions, OpenAI Responses and Anthropic Messages, distinguished by the end of
    the path. Use `url` for Anthropic clients and `openai_url` for OpenAI clients.

    Each request that offers tools uses one step of the script. Requests without tools, for example for titles, get a
    fixed reply and use no step. A conversation that real models refuse, for example with a call but no result, is
    refused here too and uses no step.
    """

    def __init__(
        self,
        steps: Iterable[Scripted] = (),
        *,
        port: int = 0,
        key: str | None = None,
        models: Iterable[str] = ("scripted",),
    ) -> None:
        self.models = tuple(models)
        self.key = key
        """Requests with another key get status 401. None accepts any key."""
        self.visits: deque[str] = deque(maxlen=_MAX_VISITS)
        """Method and path of every request, including those for other paths."""
        self._wanted_port = port
        self._scripts = Scripts()
        self._scripts.put(steps, "")
        self._requests: deque[Request] = deque()
        self._kept_bytes = 0
        self._count = 0
        self._lock = threading.Lock()
        self._waiters: list[Future[None]] = []
        self._server: asyncio.Server | None = None
        self._connections: set[ModelConnection] = set()
        self._thread: LoopThread | None = None

    # --- lifecycle ---

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ModelConnection(self._respond, self._connections), "127.0.0.1", self._wanted_port
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            await connection.close()
        for _ in range(3):  # a connection that was just accepted appears in one of the next turns of the loop
            await asyncio.sleep(0)
        for connection in list(self._connections):
            await connection.close()

    def __enter__(self) -> Self:
        self._thread = LoopThread()
        self._thread.run(self.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._thread.run(self.__aexit__(kind, error, trace))
        self._thread.close()

    @property
    def port(self) -> int:
        assert self._server is not None, "use it as a context manager"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Base URL for clients that append `/v1/messages`."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def openai_url(self) -> str:
        """Base URL for clients that append `/chat/completions` or `/responses`."""
        return f"{self.url}/v1"

    # --- replies ---

    def script(self, steps: Iterable[Scripted], *, when: str = "") -> Script:
        """Use these steps from now on. With `when`, only for conversations in which the user said that at the
        beginning.
        """
        with self._lock:
            return self._scripts.put(steps, when)

    def answer_sides(self, step: Scripted) -> None:
        """Set the reply to requests without tools."""
        with self._lock:
            self._scripts.side = step

    def left(self, when: str = "") -> int:
        """Returns how many steps are not used yet."""
        with self._lock:
            return self._scripts.of(when).left

    def gate(self, name: str) -> Gate:
        """Returns a gate of a step by its name. Raises `KeyError`."""
        with self._lock:
            steps = [step for script in self._scripts.all() for step in script.steps]
        for gate in (gate for step in steps for gate in step.gates):
            if gate.name == name:
                return gate
        raise KeyError(f"no step has a gate named {name!r}")

    # --- requests ---

    @property
    def requests(self) -> list[Request]:
        """The latest requests to the model, oldest first: up to 1000, and up to 256 MB."""
        with self._lock:
            return list(self._requests)

    @property
    def main_requests(self) -> list[Request]:
        """The requests that offer tools."""
        return [request for request in self.requests if request.is_main]

    def forget(self) -> None:
        """Forget all requests. Scripts keep their positions."""
        with self._lock:
            self._requests.clear()
            self._kept_bytes = 0

    async def until(self, holds: Callable[[list[Request]], bool], timeout: float = _PATIENCE) -> list[Request]:
        """Wait until `holds` returns True for the requests. It is called for each new one. Raises `TimeoutError`."""
        async with time_limit(timeout):
            while True:
                waiter: Future[None] = Future()
                with self._lock:
                    self._waiters.append(waiter)
                    requests = list(self._requests)
                try:
                    if holds(requests):
                        return requests
                    await asyncio.shield(asyncio.wrap_future(waiter))
                finally:
                    with self._lock:
                        if waiter in self._waiters:
                            self._waiters.remove(waiter)

    def _record(self, exchange: Exchange, api: Api, body: Mapping[str, Any], size: int) -> tuple[Request, Step]:
        """Record a request and choose its step together, so that steps are used in the order of requests."""
        with self._lock:
            self._count += 1
            request = Request(self._count, api, exchange.path, exchange.headers, body, size)
            self._requests.append(request)
            self._kept_bytes += size
            while len(self._requests) > 1 and (len(self._requests) > _MAX_KEPT or self._kept_bytes > _MAX_KEPT_BYTES):
                self._kept_bytes -= self._requests.popleft().size
            try:
                if request.is_main and request.complaint is not None:
                    return request, Step(error=400, message=request.complaint)
                return request, self._scripts.take(request)
            finally:
                waiters, self._waiters = self._waiters, []
                for waiter in waiters:
                    waiter.set_result(None)

    # --- responding ---

    async def _respond(self, exchange: Exchange) -> None:
        path = exchange.path.partition("?")[0]
        if path.startswith("/_/"):
            return await self._control(exchange, path)
        self.visits.append(f"{exchange.method} {path}")
        found = next((known for end, known in _PATHS.items() if path.endswith(end)), None)
        if self._refuses(exchange):
            wire = found[1] if found is not None else Chat
            return await exchange.answer(401, wire.error(401, "this key is not the scripted one"))
        if exchange.method == "POST" and path.endswith("/count_tokens"):
            return await exchange.answer(200, {"input_tokens": max(1, len(exchange.body()) // 4)})
        if exchange.method == "POST" and found is not None:
            return await self._answer(exchange, *found)
        if exchange.method in ("GET", "HEAD") and (path.endswith("/models") or path == "/"):
            return await exchange.answer(200, self._catalog())
        if exchange.method == "GET" and "/models/" in path:
            name = unquote(path.rpartition("/models/")[2])
            if name in self.models:
                return await exchange.answer(200, _model_object(name))
        return await exchange.answer(404, Chat.error(404, f"the scripted model has nothing at {path}"))

    def _refuses(self, exchange: Exchange) -> bool:
        if self.key is None:
            return False
        given = exchange.headers.get("x-api-key"), exchange.headers.get("authorization")
        return self.key != given[0] and f"Bearer {self.key}" != given[1]

    async def _answer(self, exchange: Exchange, api: Api, wire: type[Wire]) -> None:
        try:
            raw = exchange.body()
            body = json.loads(raw or b"{}")
            if not isinstance(body, dict):
                raise ValueError("it is not an object")
        except (BodyUnreadable, ValueError) as error:
            status = 415 if isinstance(error, BodyUnreadable) else 400
            return await exchange.answer(status, wire.error(status, f"the body cannot be read: {error}"))
        try:
            request, step = self._record(exchange, api, body, len(raw))
        except Exception as error:  # a step that is a function may raise anything; show it to the agent and the test
            return await exchange.answer(400, wire.error(400, f"a step of the script failed: {error!r}"))
        try:
            await self._perform(exchange, request, step, wire)
        finally:
            request.end("gone")  # unless it has already ended
        return None

    async def _perform(self, exchange: Exchange, request: Request, step: Step, wire: type[Wire]) -> None:
        await _sleep(step.delay)
        await _stand_at("start", step)
        if step.error is not None:
            message = step.message or f"scripted error {step.error}"
            await exchange.answer(step.error, wire.error(step.error, message), step.headers)
            return request.end("refused")
        try:
            tools = offered_by(request.api, request.body)
            calls = tuple(choose(call, tools) for call in step.calls)
        except NoSuchTool as error:
            await exchange.answer(400, wire.error(400, f"the script cannot go on: {error}"))
            return request.end("refused")
        reply = Reply(request.model, step, calls, secrets.token_hex(8), int(time.time()))
        if request.body.get("stream"):
            return await _stream(exchange, request, reply, wire)
        if step.cut is not False:
            await exchange.cut()
            return request.end("cut")
        await _stand_at("end", step)
        await exchange.answer(200, wire.whole(reply), step.headers)
        return request.end("answered")

    def _catalog(self) -> dict[str, Any]:
        return {"object": "list", "data": [_model_object(name) for name in self.models], "has_more": False}

    # --- the same for other processes ---

    async def _control(self, exchange: Exchange, path: str) -> None:
        match exchange.method, path.split("/")[2:]:
            case "GET", ["requests"]:
                return await exchange.answer(200, [_summary(request) for request in self.requests])
            case "POST", ["script"]:
                try:
                    given = json.loads(exchange.body())
                    self.script(given["steps"], when=given.get("when", ""))
                except (BodyUnreadable, ValueError, TypeError, KeyError) as error:
                    return await exchange.answer(400, {"error": f"this is not a script: {error!r}"})
                return await exchange.answer(200, {})
            case ("GET" | "POST") as method, ["gates", name]:
                try:
                    gate = self.gate(name)
                except KeyError as error:
                    return await exchange.answer(404, {"error": str(error)})
                if method == "POST":
                    gate.release()
                    return await exchange.answer(200, {})
                try:
                    await gate.reached()
                except TimeoutError:
                    return await exchange.answer(408, {"error": f"no answer came to the gate {name!r} yet"})
                return await exchange.answer(200, {})
        return await exchange.answer(404, {"error": "use GET /_/requests, POST /_/script, GET or POST /_/gates/NAME"})


async def _stream(exchange: Exchange, request: Request, reply: Reply, wire: type[Wire]) -> None:
    step, deltas, closing = reply.step, 0, False
    await exchange.begin_events(step.headers)
    for piece in wire.stream(reply):
        if piece.is_delta and deltas == 0:
            await _stand_at(0, step)
        if piece.part == "closing" and not closing:
            closing = True
            await _stand_at("end", step)
        if _ends_before(piece, deltas, reply):
            return await _stop(exchange, request, reply, wire)
        await exchange.send(piece.data)
        if piece.is_delta:
            deltas += 1
            await _sleep(step.delta_delay + (step.hang if deltas == 1 else 0))
            await _stand_at(deltas, step)
    await exchange.finish()
    return request.end("answered")


def _ends_before(piece: Piece, deltas: int, reply: Reply) -> bool:
    """Returns whether the script ends the stream before this piece, after so many deltas."""
    step = reply.step
    if step.cut is False:
        return step.broken != "" and piece.part == "closing"
    wanted = reply.deltas_of_words if step.cut is True else step.cut
    return deltas >= wanted and piece.part != "opening"


async def _stop(exchange: Exchange, request: Request, reply: Reply, wire: type[Wire]) -> None:
    """End a stream early."""
    if reply.step.broken:
        await exchange.send(wire.broken(reply, reply.step.broken))
        await exchange.finish()
    else:
        await exchange.cut()
    request.end("cut")


async def _sleep(seconds: float) -> None:
    if seconds:
        await asyncio.sleep(seconds)


async def _stand_at(point: Point, step: Step) -> None:
    for gate in step.gates:
        if gate.at == point:
            await gate.hold()


def _model_object(name: str) -> dict[str, Any]:
    both = {"id": name, "object": "model", "created": 0, "owned_by": "holdfast"}  # OpenAI's fields, then Anthropic's
    return {**both, "type": "model", "display_name": name, "created_at": "2026-01-01T00:00:00Z"}


def _summary(request: Request) -> dict[str, Any]:
    names = ("number", "api", "path", "is_main", "model", "step", "script", "ending")
    return {**{name: getattr(request, name) for name in names}, "body": request.body}
