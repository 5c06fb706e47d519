"""A guest API for a runner, on a real thread store: appends, beats, renewals. Made to go away and to refuse.

The threads and their producers are the real ones; what a server would decide of a run (its token, whether it is to be
cancelled) is for the test to say.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from holdfast.api.errors import Refused, Unauthorized
from holdfast.api.ids import now_ms
from holdfast.api.thread.entries import Entry
from holdfast.storage.sqlite.streams import SqliteStreams
from holdfast.threads.access.authority import KEY, Author, Authority, Writer
from holdfast.threads.access.seals import Seals
from holdfast.threads.entries import keyed
from holdfast.threads.protocol.messages import JSON_TYPE, Request, Response, error_response
from holdfast.threads.protocol.surface import PREFIX, StreamSurface, stream_path
from holdfast.threads.store import AppendRequest, Producer
from holdfast.time_limit import time_limit

_PATIENCE: Final = 240.0
_READ: Final = 1 << 30

Fault = Callable[[Request], Awaitable[Response | None]]
"""Asked before a request is carried out: an answer instead, or None. Raising `ConnectionError` hangs up."""


class FakeGuestApi:
    """`async with` opens it on a port of its own, which it keeps while it is `away`."""

    def __init__(
        self,
        folder: Path,
        thread: str = "t-test",
        *,
        run: str = "r-1",
        agent: str = "scripted",
        token_seconds: int = 3600,
    ) -> None:
        self.thread = thread
        self.run = run
        self.agent = agent
        self.cancel: str | None = None
        self.limit: dict[str, str] | None = None
        """The error that names the limit of its box by which the agent was killed."""
        self.fault: Fault | None = None
        self.after: Fault | None = None
        """Asked after a request was carried out."""
        self.requests: list[tuple[str, int]] = []
        """Paths and statuses."""
        self.token_seconds = token_seconds
        self.valid: set[str] = set()
        self._folder = folder
        self._port = 0
        self._tokens = 0
        self._store: SqliteStreams | None = None
        self._surface: StreamSurface | None = None
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._store = await SqliteStreams.open(self._folder / "data.db")
        self._surface = StreamSurface(self._store, Authority(Seals(b"tests"), frozenset((self.agent,))))
        created = Request("PUT", f"threads/{self.thread}", b"", {b"content-type": b"application/json"})
        await self._surface.respond(created, KEY)
        await self.come_back()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.go_away()
        assert self._store is not None
        await self._store.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def new_token(self) -> str:
        """In the shape of a real one: how long it lives can be read from it."""
        self._tokens += 1
        claims = json.dumps({"iat": 1000, "exp": 1000 + self.token_seconds, "n": self._tokens}).encode()
        token = f"x.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.x"
        self.valid.add(token)
        return token

    async def come_back(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def go_away(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in list(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def claim(self, epoch: int) -> None:
        """As whoever starts a runner does: earlier runners are fenced."""
        entry = Entry(f"runner-{epoch}", now_ms(), {"type": "signal.run.runner", "epoch": epoch})
        assert self._store is not None
        claim = AppendRequest(keyed=(keyed(entry),), producer=Producer("run", epoch, 0))
        await self._store.append(f"threads/{self.thread}", claim)
        self._changed.set()

    async def entries(self) -> list[dict[str, Any]]:
        assert self._store is not None
        path, start, found = f"threads/{self.thread}", 0, bytearray()
        while True:
            piece = await self._store.read(path, start, _READ)
            found += piece.data
            start = piece.end
            if piece.up_to_date:
                break
        return list(json.loads(b"[" + bytes(found).rstrip(b",\n") + b"]"))

    async def payloads(self, kind: str = "") -> list[dict[str, Any]]:
        """Of what the runner posted, those whose type ends so."""
        found = [each["payload"] for each in await self.entries()]
        return [each for each in found if each["type"].endswith(kind) and each["type"] != "signal.run.runner"]

    def beats(self) -> int:
        return sum(1 for path, status in self.requests if path.endswith("/beat") and status == 200)

    async def until(self, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait for something that can only come true by a request."""
        async with time_limit(_PATIENCE):
            while True:
                self._changed.clear()
                if await holds():
                    return
                await self._changed.wait()

    async def until_posted(self, kind: str, count: int = 1) -> None:
        async def holds() -> bool:
            return len(await self.payloads(kind)) >= count

        await self.until(holds)

    # --- HTTP, as much as a runner speaks ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or not self._server.is_serving():  # it was let in as we went
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, path, _ = head[0].split(" ")
                lines = [line.partition(":") for line in head[1:] if line]
                headers = {name.lower().encode(): value.strip().encode() for name, _, value in lines}
                body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
                response = await self._answer(Request(method, path, b"", headers, body))
                self.requests.append((path, response.status))
                more = b"".join(b"%s: %s\r\n" % each for each in response.headers)
                start = b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n" % (response.status, len(response.body))
                writer.write(start + more + b"\r\n" + response.body)
                await writer.drain()
                self._changed.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._changed.set()
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, request: Request) -> Response:
        try:
            if self.fault is not None and (instead := await self.fault(request)) is not None:
                return instead
            response = await self._carry_out(request)
            if self.after is not None and (instead := await self.after(request)) is not None:
                return instead
            return response
        except Refused as error:
            return error_response(error, "")

    async def _carry_out(self, request: Request) -> Response:
        credential = request.headers.get(b"authorization", b"").decode().removeprefix("Bearer ")
        if request.path == "/v1/tokens/renew":
            token = self.new_token()
            return _json({"token": token, "expires_at": 0})
        if credential not in self.valid:
            raise Unauthorized("this token is not good")
        if request.path.endswith("/beat"):
            return _json({"cancel": self.cancel})
        if request.path.endswith("/limit"):
            return _json({"limit": self.limit})
        assert self._surface is not None
        request.path = stream_path(request.path.removeprefix(PREFIX))
        author = Author(Writer.RUNNER, self.run, int(request.headers[b"producer-epoch"]), self.agent)
        return await self._surface.respond(request, author)


def _json(document: dict[str, Any]) -> Response:
    return Response(200, [JSON_TYPE], json.dumps(document).encode())
