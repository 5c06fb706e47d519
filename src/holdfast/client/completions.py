"""Completions over one WebSocket: a request of its own for each takes four times as much of this machine.

HTTP is the way for everything else: what is too large for a message, what comes before the socket is open, and all of
it where a server, or something before it, lets no socket in.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import select
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from holdfast.api.errors import HoldfastError, Unauthorized, Unreachable, error_of
from holdfast.client.connection import ServerConnection, encode_json, not_understood
from holdfast.client.websockets import MAX_MESSAGE, open_once, unreachable, words_of
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

AT_ONCE: Final = 64
"""Completions under way at once, as a server wants it. Others wait for their turn."""
_HTTP_PATH: Final = "/v1/completions"
_PATH: Final = f"{_HTTP_PATH}/socket"
_ASKED: Final = words_of(_PATH)
_NONE_SECONDS: Final = 60.0
"""How long a server that lets no socket in is not asked for one again."""


class Completions:
    """Owns the socket, which is opened beside the first completion, and beside the next one after it broke.

    Of one event loop. What was under way on a socket that broke fails, and is not asked again: it may have happened.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._count = 0
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._line: _Line | None = None
        self._opening: asyncio.Task[None] | None = None
        self._reading: set[asyncio.Task[None]] = set()
        self._none_until = 0.0
        self._closed = False

    async def ask(self, wanted: Mapping[str, Any], *, timeout: float) -> Any:
        """The completion as JSON has it. `timeout` is how long an answer may take, all in all."""
        self._count += 1
        id = str(self._count)
        frame = encode_json({"id": id, **wanted})
        async with self._turns:
            if len(frame) <= MAX_MESSAGE and (line := self._find_line()) is not None:
                try:
                    async with time_limit(timeout):
                        return await line.ask(id, frame)
                except TimeoutError as error:
                    line.retire()  # a server answers in time: nothing comes through
                    raise unreachable(line.url, _ASKED, error) from error
                except Unauthorized:
                    line.retire()  # no model was asked: HTTP finds the server again, or says the same
            answer = await self._connection.ask(
                "POST", _HTTP_PATH, body=encode_json(wanted), repeatable=False, timeout=timeout
            )
            return answer.read(lambda told: told)

    async def close(self) -> None:
        """What is under way on the socket fails. Closing twice does nothing."""
        self._closed = True
        tasks = [*self._reading] if self._opening is None else [self._opening, *self._reading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find_line(self) -> _Line | None:
        """One that is open. None: it is being opened, or there is none; nobody waits for it."""
        if self._line is not None:
            if self._line.is_usable:
                return self._line
            self._line.retire()
            self._line = None
        if self._opening is None and not self._closed and time.monotonic() >= self._none_until:
            self._opening = asyncio.create_task(self._open())
        return None

    async def _open(self) -> None:
        try:
            await asyncio.to_thread(importlib.import_module, "websockets.asyncio.client")  # which takes a while
            opened = await open_once(self._connection, _PATH, max_message=None)
        except (Unreachable, Unauthorized):
            return  # HTTP waits for the server and finds it again; the next completion tries this again
        except (HoldfastError, ValueError):
            # An older server, a proxy without WebSockets, or a credential that may not: HTTP works, or says why not.
            self._none_until = time.monotonic() + _NONE_SECONDS
            return
        finally:
            self._opening = None
        self._line = _Line(opened, self._connection.url)
        self._reading.add(self._line.reading)
        self._line.reading.add_done_callback(self._reading.discard)


class _Line:
    """An open socket, and who waits for an answer on it. Ends by itself when the socket does."""

    def __init__(self, opened: ClientConnection, url: str) -> None:
        self.url = url
        self._opened = opened
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self._retired = False
        self._reason: BaseException = EOFError("the connection was given up")
        self.reading = asyncio.create_task(self._read())
        # Not by the task alone: one that is cancelled before its first step does nothing at all.
        self.reading.add_done_callback(self._let_go)

    @property
    def is_usable(self) -> bool:
        # Something that came while nobody waits is most likely its end, which the loop has had no time to tell.
        return not self._retired and (bool(self._waiting) or not self._has_something_to_read())

    async def ask(self, id: str, frame: bytes) -> Any:
        answer = self._waiting[id] = asyncio.get_running_loop().create_future()
        try:
            await self._send(frame)
            return await answer
        except asyncio.CancelledError:
            self._give_up(id)
            raise
        finally:
            del self._waiting[id]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # where sending failed first, nobody else looks at it
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Take nothing more, and end once nobody waits."""
        self._retired = True
        if not self._waiting:
            self.reading.cancel()

    async def _send(self, frame: bytes) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            await self._opened.send(frame, text=True)
        except ConnectionClosed as closed:
            raise unreachable(self.url, _ASKED, closed) from closed

    def _give_up(self, id: str) -> None:
        """Tell the server, and let nobody wait for that."""
        if self.reading.done():
            return
        telling = asyncio.create_task(self._tell_cancelled(id))
        self._cancelling.add(telling)
        telling.add_done_callback(self._cancelling.discard)

    async def _tell_cancelled(self, id: str) -> None:
        try:
            await self._send(encode_json({"id": id, "cancel": True}))
        except Unreachable:
            return  # which gives it up as well

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                self._take(await self._opened.recv())
        except (ConnectionClosed, HoldfastError) as error:
            self._reason = error
        finally:
            self._fail_all()  # at once: to close takes the other side
            await self._opened.close()

    def _let_go(self, _: asyncio.Task[None]) -> None:
        self._fail_all()
        self._opened.transport.abort()  # where nobody waits for the other side to close, or it does not

    def _fail_all(self) -> None:
        """Nothing more comes: whoever waits is told so."""
        self._retired = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._failure())
        for telling in self._cancelling:
            telling.cancel()

    def _failure(self) -> HoldfastError:
        """For one who waits: no two of them raise the same object."""
        reason = self._reason
        if isinstance(reason, HoldfastError):
            return type(reason)(reason.message, status=reason.status, code=reason.code, hint=reason.hint)
        return unreachable(self.url, _ASKED, reason)

    def _take(self, frame: str | bytes) -> None:
        try:
            told = json.loads(frame)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise not_understood(f"a frame of {_ASKED} cannot be read: {frame[:80]!r}")
        problem = told.get("error")
        failure = None
        if isinstance(problem, dict):
            status = told.get("status")
            known = status if isinstance(status, int) else 500 if problem.get("code") == "internal" else 400
            headers = {"x-request-id": str(problem["requestId"])} if problem.get("requestId") else {}
            failure = error_of(known, headers, json.dumps(told).encode(), _ASKED)
        if failure is not None and "id" not in told:
            raise failure  # about the socket as a whole
        answer = self._waiting.get(str(told.get("id")))
        if answer is None or answer.done():
            return  # it was given up meanwhile
        if failure is not None:
            answer.set_exception(failure)
        else:
            answer.set_result(told.get("completion"))

    def _has_something_to_read(self) -> bool:
        number = self._opened.transport.get_extra_info("socket").fileno()
        if number < 0:
            return True
        poll = select.poll()
        poll.register(number, select.POLLIN)
        return bool(poll.poll(0))
