"""The guest API: what a run may ask of the server from inside its box, and nothing else.

A connection is known by the box that it came from, and every request needs the token of a run in that box, even if
the server itself requires no key. A box with a network of its own may use the server's port instead, under `/guest`,
perhaps through a relay: then the token alone tells the box, and only tokens that were issued for that are valid.

The runner of a session holds a WebSocket to the hub (`/v1/hub`), with a token for that session in that box.

Requests to `/api/…` are those of a session's internal API. They need no token: only the box itself can make them.

A runner appends to its thread in its own epoch, sends heartbeats and renews its token; an agent uses the model of its
run, and may delegate tasks and use the tools of its session.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl

import orjson

from holdfast.api.errors import Forbidden, InvalidRequest, NotFound, Refused, TooLarge, Unavailable
from holdfast.api.guest_url import GUEST_PREFIX
from holdfast.api.run.tasks import TOOLS
from holdfast.guest.hub_messages import LONGEST_MESSAGE
from holdfast.server.wire.streams import bearer
from holdfast.server.wire.uvicorn_adapter import HttpToolsProtocol, ServerState, make_config
from holdfast.threads.access.authority import Author, Writer
from holdfast.threads.access.credentials import Access, RunGrant, RunScope
from holdfast.threads.errors import method_not_allowed
from holdfast.threads.protocol.messages import JSON_TYPE, Request, Response, error_body, error_response
from holdfast.threads.protocol.surface import THREADS, StreamSurface, stream_path
from holdfast.time_limit import time_limit

log = logging.getLogger(__name__)

PRODUCER: Final = b"run"
"""The producer of all entries that runs append to a thread. Each run has its own epoch."""
MODEL: Final = "/model"
_STREAM: Final = "/v1/stream/"
_RUNS: Final = "/v1/runs/"
_TOOLS: Final = "/v1/tools/"
_INTERNAL: Final = "/api/"
_DELEGATION: Final = frozenset(each.name for each in TOOLS)
HUB: Final = "/v1/hub"
_RUNNER_ID: Final = re.compile(r"[0-9a-f]{16}")
_PROCESS_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PING_SECONDS: Final = 20.0
_MOST_ARGUMENTS: Final = 8 * 1024 * 1024
"""Of a call of a tool: a prompt of a million characters, however they are written."""
_HEAD_SECONDS: Final = 20.0
_BODY_SECONDS: Final = 60.0
_MOST_SMALL: Final = 64 * 1024
"""Of bodies that have no content, from anybody who knows the URL."""
_MOST_HEAD: Final = 64 * 1024
_KEEP_ALIVE_SECONDS: Final = 75

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


T_co = TypeVar("T_co", covariant=True)


class GuestRuns(Protocol):
    """What runners and agents ask of the service of runs."""

    async def beat(self, run: str, epoch: int) -> str | None:
        """Record that the runner is alive. Returns how it should end, or None.

        Raises if the run is over, or another runner has it.
        """
        ...

    async def limit(self, run: str, epoch: int) -> dict[str, str] | None:
        """Returns the error of a run whose agent was killed by a limit of its box, or None. Raises as `beat` does."""
        ...

    async def lives(self, thread: str, run: str, epoch: int) -> bool:
        """Returns whether it is the thread's current run, in that epoch."""
        ...

    async def current(self, thread: str, box: str) -> tuple[str, int] | None:
        """Returns the thread's run and its epoch, if it is alive in that box."""
        ...

    async def model_terms(self, thread: str, run: str) -> Any:
        """Returns the budget and the fallbacks of a run, for the model gateway."""
        ...

    async def report_model_error(self, thread: str, run: str, message: str) -> None:
        """Write on the thread why the model of its run does not answer."""
        ...

    async def call_tool(self, thread: str, run: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Call a tool by which the agent of a run delegates tasks. Raises an error with a code."""
        ...


class Opening(Protocol[T_co]):
    """A part of the server that may not be open yet."""

    @property
    def opened(self) -> T_co | None: ...

    async def get(self) -> T_co: ...


class ModelRelay(Protocol):
    """Passes requests of an agent on to its model, and adds the key."""

    async def handle(
        self,
        scope: Any,
        receive: Any,
        send: Any,
        grant: RunGrant,
        *,
        tell: Callable[[str], Awaitable[None]] | None,
        terms: Any,
    ) -> None:
        """`tell` is called with the reason if a provider does not answer. `terms` are those of the run."""
        ...

    async def refuse(self, scope: Any, send: Any, status: int, message: str) -> None:
        """Answer with an error in the form that agents understand."""
        ...


class Internal(Protocol):
    """The internal API of sessions (`holdfast.gateway.internal_api`)."""

    async def respond(self, box: str, method: str, path: str, query: bytes, body: bytes) -> tuple[int, bytes]: ...


class SessionTools(Protocol):
    """What the agents of sessions ask for (`holdfast.sessions.tools`)."""

    async def call(self, session: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]: ...


class SessionHub(Protocol):
    """The hub of sessions (`holdfast.sessions.hub`)."""

    async def serve(self, thread: str, box: str, runner: str, process: str, receive: Any, send: Any) -> None:
        """Serve the connection of a session's runner until it ends."""
        ...


class GuestApi:
    """Serves the connections that the egress hands over. Until the runs are open, it answers "try again"."""

    def __init__(
        self,
        surface: StreamSurface,
        access: Access,
        next_request_id: Callable[[], str],
        runs: Opening[GuestRuns],
        models: Opening[ModelRelay],
        *,
        max_body: int,
        internal_api: Callable[[], Awaitable[Internal]] | None = None,
        session_tools: Callable[[], Awaitable[SessionTools]] | None = None,
        hub: Callable[[], Awaitable[SessionHub]] | None = None,
        check_append: Callable[[int], None] = lambda size: None,
    ) -> None:
        """`check_append` raises if a runner may not add so many bytes to its thread."""
        self._surface = surface
        self._access = access
        self._next_request_id = next_request_id
        self._max_body = max_body
        self._runs = runs
        self._models = models
        self._internal_api = internal_api
        self._session_tools = session_tools
        self._hub = hub
        self._check_append = check_append
        self._config = make_config(
            self._answer,
            _GuestProtocol,
            interface="asgi3",
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            ws_max_size=LONGEST_MESSAGE,
            ws_per_message_deflate=False,
            ws_ping_interval=_PING_SECONDS,
            ws_ping_timeout=_PING_SECONDS,
        )
        self._config.load()
        self._state = ServerState()

    async def __call__(self, box: str, connection: socket.socket, ahead: bytes) -> None:
        loop = asyncio.get_running_loop()
        wire = _GuestProtocol(self._config, self._state, {"box": box}, _loop=loop)
        wire.ahead = ahead
        transport: asyncio.Transport | None = None
        try:
            connection.setblocking(False)
            transport, _ = await loop.connect_accepted_socket(lambda: wire, connection)
            await wire.over
        except OSError:
            pass  # it is already gone
        finally:
            if transport is None:
                connection.close()
            else:
                transport.abort()

    async def by_url(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request to the server's own port, as an ASGI app."""
        prefix = GUEST_PREFIX.encode()
        path, raw = scope["path"].removeprefix(GUEST_PREFIX), scope["raw_path"].removeprefix(prefix)
        await self._answer({**scope, "path": path, "raw_path": raw, "state": {"box": None}}, receive, send)

    # --- requests ---

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._connect(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        request_id = self._next_request_id()
        try:
            if scope["path"].startswith(f"{MODEL}/"):
                await self._model(scope, receive, send)
                return
            response = await self._respond(scope, receive, request_id)
        except Refused as error:
            response = error_response(error, request_id)
        except _Left:
            return
        except Exception:
            log.exception("a request from box %s failed", scope["state"]["box"] or "(by URL)")
            message = "the server failed; its log has details under this request id"
            response = Response(500, [JSON_TYPE], error_body("internal", message, request_id))
        await _send(send, response)

    async def _connect(self, scope: Any, receive: Receive, send: Send) -> None:
        """Let the runner of a session speak with the hub."""
        box, query = scope["state"]["box"], dict(parse_qsl(scope["query_string"].decode("latin-1")))
        runner, process = query.get("runner", ""), query.get("process", "")
        try:
            grant = self._access.grant_run(bearer(dict(scope["headers"])), box)
            if grant.scope is not RunScope.HUB:
                raise Forbidden("this token is not for the hub")
            if self._hub is None or scope["path"] != HUB or box is None:
                raise NotFound("there is no hub here")
            if not _RUNNER_ID.fullmatch(runner) or not _PROCESS_ID.fullmatch(process):
                raise InvalidRequest("a runner has to tell its id and its process")
            hub = await self._hub()
        except Refused as error:
            answer = error_response(error, self._next_request_id())
            await send({"type": "websocket.http.response.start", "status": answer.status, "headers": answer.headers})
            await send({"type": "websocket.http.response.body", "body": answer.body})
            return
        await hub.serve(grant.thread, box, runner, process, receive, send)

    async def _respond(self, scope: Any, receive: Receive, request_id: str) -> Response:
        path, box = scope["path"], scope["state"]["box"]
        headers = dict(scope["headers"])
        credential = bearer(headers)
        if path.startswith(_INTERNAL) and box is not None and self._internal_api is not None:
            body = await self._body(receive, min(_MOST_ARGUMENTS, self._max_body))
            internal = await self._internal_api()
            status, answer = await internal.respond(box, scope["method"], path, scope["query_string"], body)
            return Response(status, [JSON_TYPE], answer)
        if scope["method"] != "POST":
            raise method_not_allowed(scope["method"], "POST")
        if path.startswith(_STREAM):
            grant = self._runner(credential, box)
            raw_path = scope["raw_path"].decode("ascii").removeprefix(_STREAM)
            return await self._append(grant, raw_path, headers, await self._body(receive, self._max_body), request_id)
        if path.startswith(_TOOLS):
            return await self._call_tool(credential, box, path.removeprefix(_TOOLS), receive)
        await self._body(receive, _MOST_SMALL if box is None else self._max_body)
        if path == "/v1/tokens/renew":
            return await self._renew(credential, box)
        if path.startswith(_RUNS) and path.endswith(("/beat", "/limit")):
            grant = self._runner(credential, box)
            run, _, what = path.removeprefix(_RUNS).rpartition("/")
            if run != grant.run:
                raise Forbidden(f"this token is for run {grant.run}")
            if what == "beat":
                return _json({"cancel": await self._open_runs().beat(grant.run, grant.epoch)})
            return _json({"limit": await self._open_runs().limit(grant.run, grant.epoch)})
        raise NotFound(f"there is no {path} for boxes")

    def _runner(self, credential: str | None, box: str | None) -> RunGrant:
        grant = self._access.grant_run(credential, box)
        if grant.scope is not RunScope.RUNNER:
            raise Forbidden(f"this token is for the scope {grant.scope} of a run, not for its runner")
        return grant

    async def _call_tool(self, credential: str | None, box: str | None, tool: str, receive: Receive) -> Response:
        grant = self._access.grant_run(credential, box)
        if grant.scope is not RunScope.DELEGATE:
            raise Forbidden("this token is not for tools")
        runs = self._open_runs()
        grant = await self._current(runs, grant)
        if not await runs.lives(grant.thread, grant.run, grant.epoch):
            raise Forbidden(f"run {grant.run} has ended, so it can no longer use tools")
        body = await self._body(receive, min(_MOST_ARGUMENTS, self._max_body))
        try:
            arguments = orjson.loads(body or b"{}")
        except orjson.JSONDecodeError as error:
            raise InvalidRequest(f"the arguments are not valid JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise InvalidRequest("the arguments must be a JSON object")
        if tool in _DELEGATION or self._session_tools is None:
            return _json(await runs.call_tool(grant.thread, grant.run, tool, arguments))
        tools = await self._session_tools()
        return _json(await tools.call(grant.thread, tool, arguments))

    async def _append(
        self, grant: RunGrant, raw_path: str, headers: dict[bytes, bytes], body: bytes, request_id: str
    ) -> Response:
        path = stream_path(raw_path)
        if path != THREADS + grant.thread:
            raise Forbidden(f"this token is for thread {grant.thread}")
        # Otherwise a runner that lost its run could still write.
        if headers.get(b"producer-id") != PRODUCER or headers.get(b"producer-epoch") != b"%d" % grant.epoch:
            raise Forbidden(f"a runner must append as producer {PRODUCER.decode()} in epoch {grant.epoch}")
        if b"stream-closed" in headers:
            raise Forbidden("a run cannot close its thread")
        self._check_append(len(body))
        request = Request("POST", path, b"", headers, body, request_id)
        author = Author(Writer.RUNNER, grant.run, grant.epoch, grant.agent)
        return await self._surface.respond(request, author)

    async def _renew(self, credential: str | None, box: str | None) -> Response:
        issued = self._access.renew_run(credential, box)
        grant = self._access.grant_run(issued.token, box)
        if not await self._open_runs().lives(grant.thread, grant.run, grant.epoch):
            raise Forbidden(f"run {grant.run} has ended or has another runner, so its token is not renewed")
        return _json({"token": issued.token, "expires_at": issued.expires_at})

    async def _model(self, scope: Any, receive: Receive, send: Send) -> None:
        runs = self._runs.opened
        if runs is None:
            await _send(send, Response(503, [JSON_TYPE, (b"retry-after", b"1")], b'{"error":{"message":"starting"}}'))
            return
        models = await self._models.get()
        headers = dict(scope["headers"])
        credential = bearer(headers) or headers.get(b"x-api-key", b"").decode("latin-1") or None
        try:
            grant = self._access.grant_run(credential, scope["state"]["box"])
            if grant.scope is not RunScope.MODEL:
                raise Forbidden("this token is not for a model")
            grant = await self._current(runs, grant)
            if not await runs.lives(grant.thread, grant.run, grant.epoch):
                raise Forbidden(f"run {grant.run} has ended, so it can no longer use its model")
        except Refused as error:
            await models.refuse(scope, send, error.status, error.message)
            return
        tell = partial(runs.report_model_error, grant.thread, grant.run)
        terms = await runs.model_terms(grant.thread, grant.run)
        await models.handle(scope, receive, send, grant, tell=tell, terms=terms)

    async def _current(self, runs: GuestRuns, grant: RunGrant) -> RunGrant:
        """Returns the grant for the run that is alive, if it is for all runs of a session."""
        if grant.run:
            return grant
        current = await runs.current(grant.thread, grant.box)
        if current is None:
            raise Forbidden(f"no run of session {grant.thread} is alive")
        return replace(grant, run=current[0], epoch=current[1])

    def _open_runs(self) -> GuestRuns:
        runs = self._runs.opened
        if runs is None:
            raise Unavailable("the server is starting", hint="try again in a moment")
        return runs

    async def _body(self, receive: Receive, most: int) -> bytes:
        pieces, size = [], 0
        try:
            async with time_limit(_BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Left
                    piece = message.get("body", b"")
                    size += len(piece)
                    if size > most:
                        raise TooLarge(f"at most {most} bytes at once: send it in parts")
                    pieces.append(piece)
                    if not message.get("more_body"):
                        return b"".join(pieces)
        except TimeoutError:
            raise InvalidRequest(f"the body did not arrive within {_BODY_SECONDS:g} s") from None


class _Left(Exception):
    """The client has left."""


class _GuestProtocol(HttpToolsProtocol):
    """A connection. The head is limited in size and time, because the other end is not trusted."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.over: asyncio.Future[None] = self.loop.create_future()
        self.ahead = b""
        """Bytes that were already read. They come before what the loop reads."""
        self._head_bytes = 0
        self._patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()
        if self.ahead:
            self.data_received(self.ahead)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)
        self._end()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = 0
        self._wait_for_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        super().on_headers_complete()

    def _should_upgrade_to_ws(self) -> bool:
        return self.url.partition(b"?")[0] == HUB.encode()

    def handle_websocket_upgrade(self) -> None:
        # Imported here, because it takes long.
        from holdfast.server.wire.websocket_protocol import WebSocketProtocol

        self._stop_waiting()
        self.ws_protocol_class = WebSocketProtocol
        super().handle_websocket_upgrade()
        upgraded = self.transport.get_protocol()
        assert isinstance(upgraded, WebSocketProtocol)
        upgraded.on_lost = self._end

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def _count(self, many: int) -> None:
        self._head_bytes += many
        if self._head_bytes > _MOST_HEAD:
            self.transport.abort()

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._patience = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _json(value: Any) -> Response:
    return Response(200, [JSON_TYPE], orjson.dumps(value))


async def _send(send: Send, response: Response) -> None:
    headers = response.headers
    if response.status != 204:
        headers = [*headers, (b"content-length", b"%d" % len(response.body))]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
