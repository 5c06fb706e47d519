"""The way to a kernel whose box can only be asked: each request is an `exec` of a small client in the box.

In the box a broker keeps the connection to a context. Here, `Brokered` looks like that connection: what is written is
put there, what the context says is taken from there, under a claim that is confirmed once it is here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from holdfast.boxes.box import Box
from holdfast.boxes.errors import BoxError, BoxUnreachable, ConnectRefused, ExecTimeout, Refused
from holdfast.boxes.process import Connection
from holdfast.guest.kernel.protocol import Garbage, Unpacker, pack
from holdfast.interpreter.errors import KernelLost

LEASE_SECONDS: Final = 15.0
_WAIT_SECONDS: Final = 20.0
"""How long the broker holds a request to which there is nothing to say."""
_REQUEST_SECONDS: Final = 30.0
_TRIES: Final = 4
_PAUSE: Final = 0.2
_LONGEST_BODY: Final = 128 << 20
_MOST_PUT: Final = 4 << 20
_MOST_PARTS: Final = 256
_NOBODY: Final = 3
"""Exit code of the client where nobody listens."""
_CLIENT: Final = f"""\
import os, socket, sys
port, _, request = sys.stdin.buffer.read().partition(b"\\n")
try:
    connection = socket.create_connection(("127.0.0.1", int(port)), 10)
except ConnectionRefusedError:
    os._exit({_NOBODY})
connection.settimeout({_WAIT_SECONDS + _REQUEST_SECONDS})
connection.sendall(request)
while True:
    piece = connection.recv(1 << 18)
    if not piece:
        break
    sys.stdout.buffer.write(piece)
"""


class Broker:
    """The kernel of one box, by requests."""

    def __init__(self, box: Box, port: int, token: str, *, lease: float = LEASE_SECONDS) -> None:
        """`port` and `token` are those of the fork server."""
        self.lease = lease
        self._box = box
        self._fork_server = port
        self._token = token
        self._port: int | None = None

    def connect(self) -> Connection:
        return Brokered(self)

    async def ask_fork_server(self, document: dict[str, Any]) -> bytes:
        """Its answer, as it comes. Raises `BoxError`, and `KernelLost` where there is no fork server any more."""
        try:
            return await self._exec(self._fork_server, pack({**document, "token": self._token}), _REQUEST_SECONDS)
        except ConnectRefused:
            raise KernelLost(f"the kernel of box {self._box.id} has ended") from None

    async def ask(
        self, document: dict[str, Any], body: bytes = b"", *, wait: float = 0.0
    ) -> tuple[dict[str, Any], bytes]:
        """What the broker answers; asked again where no answer comes. Raises `BoxError`, `Refused`."""
        request = pack({**document, "token": self._token}, body)
        for left in reversed(range(_TRIES)):
            try:
                if self._port is None:
                    self._port = await self._find()
                return _answer_of(await self._exec(self._port, request, wait + _REQUEST_SECONDS))
            except ConnectRefused:
                self._port = None  # the broker has ended: there will be another, which holds nothing
                if document["t"] != "open" or not left:
                    raise
            except (BoxUnreachable, ExecTimeout):
                if not left:
                    raise
                await asyncio.sleep(_PAUSE)
        raise AssertionError

    async def _find(self) -> int:
        document, _ = _answer_of(await self.ask_fork_server({"t": "broker"}))
        port = document.get("port")
        if not isinstance(port, int) or not 0 < port < 65536:
            raise BoxUnreachable("the kernel says what makes no sense of its broker")
        return port

    async def _exec(self, port: int, request: bytes, timeout: float) -> bytes:
        argv = [*await self._box.python(), "-I", "-S", "-c", _CLIENT]
        done = await self._box.exec(
            argv, stdin=b"%d\n%s" % (port, request), timeout=timeout, max_output=_LONGEST_BODY + (2 << 20)
        )
        if done.exit_code == _NOBODY:
            raise ConnectRefused(f"nobody listens on port {port} of box {self._box.id}")
        if done.exit_code != 0:
            raise BoxUnreachable(
                f"a request in box {self._box.id} failed: {done.stderr[-300:].decode(errors='replace')}"
            )
        return done.stdout


@dataclass(slots=True)
class _Part:
    """A message on its way to the context."""

    message: bytes
    call: str
    """That it answers, or empty."""
    sent: asyncio.Future[None]


class Brokered(Connection):
    """A connection to the kernel that is none. Its first message says what it is for: a context, or one question."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._context = ""
        self._holder = ""
        self._unpacker = Unpacker(_LONGEST_BODY)
        self._heard: asyncio.Queue[bytes] = asyncio.Queue(4)
        self._rest = b""
        self._at_end = False
        self._in_order = asyncio.Lock()
        self._is_closed = False
        self._parts: list[_Part] = []
        self._has_parts = asyncio.Event()
        self._claims: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Calls that are to be answered: their claims, and their executions."""
        self._number = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def write(self, data: bytes) -> None:
        """Returns once the broker has it."""
        sent = []
        async with self._in_order:  # what comes second waits until what came first has opened it
            for document, body in self._unpacker.take(data):
                if self._holder:
                    sent.append(self._put(document, body))
                elif self._context or self._is_closed:
                    raise ConnectionResetError("the connection was closed")
                elif document["t"] == "attach":
                    await self._open(document)
                else:
                    await self._heard.put(await self._broker.ask_fork_server(document))
                    await self._heard.put(b"")
        if sent:
            await asyncio.gather(*sent)

    async def read(self, limit: int = 1 << 16) -> bytes:
        if not self._rest and not self._at_end:
            self._rest = await self._heard.get()
            self._at_end = not self._rest
        piece, self._rest = self._rest[:limit], self._rest[limit:]
        return piece

    async def close_write(self) -> None:
        """There is no half of such a connection to close."""

    async def close(self) -> None:
        self._is_closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail(ConnectionResetError("the connection was closed"))
        while not self._heard.empty():
            self._heard.get_nowait()
        self._heard.put_nowait(b"")  # for who still reads
        holder, self._holder = self._holder, ""
        if holder and tasks:
            with contextlib.suppress(BoxError, Garbage, KernelLost):
                await self._broker.ask({"t": "leave", "context": self._context, "holder": holder})

    # --- to the context ---

    async def _open(self, document: dict[str, Any]) -> None:
        self._context = str(document["context"])
        asked = {"t": "open", "context": self._context, "make": document.get("make"), "lease": self._broker.lease}
        answer, _ = await self._broker.ask(asked)
        self._holder = str(answer["holder"])
        self._tasks = [asyncio.create_task(self._take(self._holder)), asyncio.create_task(self._send(self._holder))]

    def _put(self, document: dict[str, Any], body: bytes) -> asyncio.Future[None]:
        call = str(document["call"]) if document["t"] == "answer" else ""
        part = _Part(pack(document, body), call, asyncio.get_running_loop().create_future())
        self._parts.append(part)
        self._has_parts.set()
        return part.sent

    async def _send(self, holder: str) -> None:
        """One request after the other, each with all that waits: the broker says it in that order, and once."""
        while True:
            await self._has_parts.wait()
            batch, size = [self._parts.pop(0)], 0
            while self._parts and len(batch) < _MOST_PARTS:
                size += len(self._parts[0].message)
                if size > _MOST_PUT:
                    break
                batch.append(self._parts.pop(0))
            if not self._parts:
                self._has_parts.clear()
            self._number += 1
            told = [[len(part.message), part.call, self._claims.get(part.call, ("",))[0]] for part in batch]
            asked = {"t": "put", "context": self._context, "holder": holder, "number": self._number, "parts": told}
            try:
                answer, _ = await self._broker.ask(asked, b"".join(part.message for part in batch))
            except BaseException as error:
                self._parts[:0] = batch  # nobody knows whether they were said
                if not isinstance(error, BoxError | Garbage | KernelLost):
                    raise
                self._fail(error)
                await self._end()
                return
            stale = set(answer.get("stale", ()))
            for part in batch:
                if part.call not in stale:  # a stale one comes again under another claim, and is answered again
                    self._claims.pop(part.call, None)
                if not part.sent.done():
                    part.sent.set_result(None)

    def _fail(self, error: Exception) -> None:
        parts, self._parts = self._parts, []
        for part in parts:
            if not part.sent.done():
                part.sent.set_exception(error)

    # --- from the context ---

    async def _take(self, holder: str) -> None:
        claim = ""
        try:
            while True:
                renewed = [[call, held] for call, (held, _) in self._claims.items()]
                wait = self._broker.lease / 3 if renewed else _WAIT_SECONDS
                asked = {"t": "take", "context": self._context, "holder": holder, "wait": wait}
                answer, body = await self._broker.ask({**asked, "done": claim, "renew": renewed}, wait=wait)
                if answer.get("ended"):
                    return
                claim = str(answer.get("claim", ""))
                if body:
                    self._note(body, claim)
                    await self._heard.put(body)
        except (BoxError, Garbage, KernelLost):
            pass  # whoever reads sees the end, and connects again
        finally:
            if asyncio.current_task() in self._tasks:
                await self._end()

    def _note(self, body: bytes, claim: str) -> None:
        """Which calls are ours to answer, from what the context says."""
        for document, _ in Unpacker(_LONGEST_BODY).take(body):
            if document["t"] == "call":
                self._claims[str(document.get("id"))] = (claim, str(document.get("e")))
            elif document["t"] == "cancel":
                self._claims.pop(str(document.get("id")), None)
            elif document["t"] == "done":
                over = [call for call, (_, e) in self._claims.items() if e == document.get("id")]
                for call in over:
                    del self._claims[call]

    async def _end(self) -> None:
        await self._heard.put(b"")


def _answer_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    try:
        messages = Unpacker(_LONGEST_BODY).take(data)
    except Garbage as error:
        raise BoxUnreachable(f"the kernel says what makes no sense: {error}") from None
    if len(messages) != 1:
        raise BoxUnreachable("the kernel hung up before it answered")
    if messages[0][0]["t"] == "refused":
        raise Refused(str(messages[0][0].get("why"))[:1000])
    return messages[0]
