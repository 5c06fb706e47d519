"""Completions over one WebSocket, because one HTTP request for each costs four times as much CPU.

Everything else uses HTTP: requests that are too large for a message or come before the socket is open, and all requests
if the server, or a proxy in front of it, refuses the socket.
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
from holdfast.client.transport.websockets import MAX_MESSAGE, open_once, unreachable, words_of
from holdfast.time_limit import time_limit

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

AT_ONCE: Final = 64
"""How many completions run at once; the server's limit. Others wait for their turn."""
_HTTP_PATH: Final = "/v1/completions"
_PATH: Final = f"{_HTTP_PATH}/socket"
_ASKED: Final = words_of(_PATH)
_NONE_SECONDS: Final = 60.0
"""How long to wait before asking for a socket again after a server refused one."""


class Completions:
    """Owns the socket. It is opened in the background on the first completion, and again after it breaks.

    Bound to one event loop. Requests in progress on a socket that breaks fail and are not repeated, because the server
    may have carried them out.
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
        """Returns the completion as parsed JSON. `timeout` limits the whole request."""
        self._count += 1
        id = str(self._count)
        frame = encode_json({"id": id, **wanted})
        async with self._turns:
            if len(frame) <= MAX_MESSAGE and (line := self._find_line()) is not None:
                try:
                    async with time_limit(timeout):
                        return await line.ask(id, frame)
                except TimeoutError as error:
                    line.retire()  # the server always answers in time, so the connection is broken
                    raise unreachable(line.url, _ASKED, error) from error
                except Unauthorized:
                    line.retire()  # no model was asked; HTTP finds the server again, or raises the same error
            answer = await self._connection.ask(
                "POST", _HTTP_PATH, body=encode_json(wanted), repeatable=False, timeout=timeout
            )
            return answer.read(lambda told: told)

    async def close(self) -> None:
        """Close the socket. Requests in progress on it fail. Closing twice does nothing."""
        self._closed = True
        tasks = [*self._reading] if self._opening is None else [self._opening, *self._reading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find_line(self) -> _Line | None:
        """Returns an open socket, or None if there is none yet. Does not wait for one."""
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
            await asyncio.to_thread(importlib.import_module, "websockets.asyncio.client")  # importing takes a while
            opened = await open_once(self._connection, _PATH, max_message=None)
        except (Unreachable, Unauthorized):
            return  # HTTP retries and finds the server; the next completion tries this again
        except (HoldfastError, ValueError):
            # An older server, a proxy without WebSockets, or a credential without access: HTTP works or raises the
            # reason.
            self._none_until = time.monotonic() + _NONE_SECONDS
            return
        finally:
            self._opening = None
        self._line = _Line(opened, self._connection.url)
        self._reading.add(self._line.reading)
        self._line.reading.add_done_callback(self._reading.discard)


class _Line:
    """An open socket, and the requests that wait for an answer on it. Ends when the socket ends."""

    def __init__(self, opened: ClientConnection, url: str) -> None:
        self.url = url
        self._opened = opened
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self._retired = False
        self._reason: BaseException = EOFError("the connection was given up")
        self.reading = asyncio.create_task(self._read())
        # Needed as well as the task: a task that is cancelled before its first step does nothing.
        self.reading.add_done_callback(self._let_go)

    @property
    def is_usable(self) -> bool:
        # Unread data while no request is waiting is most likely the end of the connection.
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
                answer.exception()  # if sending failed first, nothing else retrieves it
            if self._retired:
                self.retire()

    def retire(self) -> None:
        """Accept no more requests, and close once none is waiting."""
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
        """Tell the server, without waiting for it."""
        if self.reading.done():
            return
        telling = asyncio.create_task(self._tell_cancelled(id))
        self._cancelling.add(telling)
        telling.add_done_callback(self._cancelling.discard)

    async def _tell_cancelled(self, id: str) -> None:
        try:
            await self._send(encode_json({"id": id, "cancel": True}))
        except Unreachable:
            return  # a lost connection cancels it too

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                self._take(await self._opened.recv())
        except (ConnectionClosed, HoldfastError) as error:
            self._reason = error
        finally:
            self._fail_all()  # at once, because closing waits for the other side
            await self._opened.close()

    def _let_go(self, _: asyncio.Task[None]) -> None:
        self._fail_all()
        self._opened.transport.abort()  # in case nothing waits for the other side to close, or it does not

    def _fail_all(self) -> None:
        """Fail all waiting requests: no more answers will come."""
        self._retired = True
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._failure())
        for telling in self._cancelling:
            telling.cancel()

    def _failure(self) -> HoldfastError:
        """Returns an error for one request. Each gets its own object."""
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
            raise failure  # about the whole socket
        answer = self._waiting.get(str(told.get("id")))
        if answer is None or answer.done():
            return  # it was cancelled in the meantime
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
