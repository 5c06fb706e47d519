"""How boxes are asked for over HTTP and WebSockets. What the server says about a box arrives as a `BoxError`."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import httpx

from holdfast.boxes.errors import BoxError, error_codes
from holdfast.client.connection import Answer, Connection, Parameters, encode_json, not_understood
from holdfast.client.errors import HoldfastError, Unauthorized, Unreachable, error_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

LONG_SECONDS: Final = 600.0
"""For what may take a while: making, stopping, keeping and deleting boxes."""
_OPEN_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 5.0
_PING_SECONDS: Final = 20.0
_MAX_MESSAGE: Final = 1024 * 1024
MAX_FRAME: Final = 256 * 1024

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
END: Final = 4


def box_error_of(code: str, message: str, hint: str | None) -> BoxError | None:
    kind = error_codes().get(code)
    return None if kind is None else kind(message, hint=hint)


@contextlib.contextmanager
def box_errors() -> Iterator[None]:
    """Refusals that are about a box, as themselves."""
    try:
        yield
    except HoldfastError as error:
        told = box_error_of(error.code, error.message, error.hint)
        if told is None:
            raise
        raise told from error


class BoxConnection:
    """Asks one server about one thing that has a path: all boxes, or one of them."""

    def __init__(self, connection: Connection, path: str) -> None:
        self._connection = connection
        self.path = path

    @property
    def url(self) -> str:
        return self._connection.url

    def below(self, *parts: str) -> BoxConnection:
        return BoxConnection(self._connection, "/".join((self.path, *(quote(part, safe="") for part in parts))))

    async def ask(
        self,
        method: str,
        path: str = "",
        document: Any = None,
        *,
        parameters: Parameters = (),
        body: bytes | None = None,
        repeatable: bool = True,
        timeout: float | None = None,
    ) -> Answer:
        with box_errors():
            return await self._connection.ask(
                method,
                self.path + path,
                parameters=parameters,
                body=encode_json(document) if document is not None else body,
                repeatable=repeatable,
                timeout=timeout,
            )

    @contextlib.asynccontextmanager
    async def exchange(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters = (),
        body: AsyncIterable[bytes] | bytes | None = None,
        silence: float | None = None,
    ) -> AsyncIterator[httpx.Response]:
        with box_errors():
            async with self._connection.exchange(
                method, self.path + path, parameters=parameters, body=body, silence=silence
            ) as response:
                yield response

    async def open_socket(self, path: str, parameters: Parameters = ()) -> Socket:
        """Tried again where the server was not there; the caller closes it."""
        connection = self._connection
        deadline, attempt = time.monotonic() + connection.retry_seconds, 0
        while True:
            try:
                return await self._open_socket(path, parameters)
            except (Unreachable, Unauthorized) as error:
                if await connection.found_elsewhere(error):
                    continue
                if isinstance(error, Unauthorized):
                    raise
                delay = connection.backoff.delay(attempt)
                if time.monotonic() + delay >= deadline:
                    raise
                await connection.wait(error, delay, attempt + 1)
                attempt += 1

    async def _open_socket(self, path: str, parameters: Parameters) -> Socket:
        from websockets.asyncio.client import connect
        from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

        place = self.path + path
        query = f"?{urlencode(list(parameters))}" if parameters else ""
        asked = f"WebSocket {place}"
        try:
            opened = await connect(
                f"ws{self._connection.url.removeprefix('http')}{place}{query}",
                additional_headers=self._connection.credential_header,
                proxy=None,
                compression=None,
                max_size=_MAX_MESSAGE,
                open_timeout=_OPEN_SECONDS,
                close_timeout=_CLOSE_SECONDS,
                ping_interval=_PING_SECONDS,
                # A server that waits for us to read is slow to answer pings, and must not be taken for dead.
                ping_timeout=None,
            )
        except InvalidStatus as refused:
            answer = refused.response
            headers = {name.lower(): value for name, value in answer.headers.raw_items()}
            with box_errors():
                raise error_of(answer.status_code, headers, bytes(answer.body or b""), asked) from None
        except InvalidURI as error:
            raise ValueError(f"{self._connection.url} is not a URL: {error}") from None
        except InvalidHandshake as error:
            raise not_understood(f"{asked} failed: {error}") from error
        except (OSError, TimeoutError, EOFError) as error:
            raise unreachable(self._connection.url, asked, error) from error
        return Socket(opened, self._connection.url, asked)


def unreachable(url: str, asked: str, error: BaseException) -> Unreachable:
    reason = str(error) or "no answer in time"
    return Unreachable(
        f"{url} cannot be reached: {reason} ({asked})", hint="check that the server runs and that the URL is right"
    )


class Socket:
    """A WebSocket to something in a box. Frames are tagged bytes, or JSON that says how it ended."""

    def __init__(self, opened: ClientConnection, url: str, asked: str) -> None:
        self._opened = opened
        self._url = url
        self._asked = asked

    async def receive(self) -> bytes | dict[str, Any]:
        """The next frame. Raises what the server says went wrong, and `Unreachable` where it says nothing."""
        from websockets.exceptions import ConnectionClosed

        try:
            frame = await self._opened.recv()
        except ConnectionClosed as closed:
            raise unreachable(self._url, self._asked, closed) from closed
        if isinstance(frame, bytes):
            return frame
        try:
            told = json.loads(frame)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise not_understood(f"a frame of {self._asked} cannot be read: {frame[:80]!r}")
        if isinstance(problem := told.get("error"), dict):
            code, message = str(problem.get("code")), str(problem.get("message"))
            hint = str(problem["hint"]) if problem.get("hint") else None
            known = box_error_of(code, message, hint)
            if known is not None:
                raise known
            raise error_of(500 if code == "internal" else 400, {}, json.dumps(told).encode(), self._asked)
        return told

    async def send(self, data: bytes | str) -> None:
        """Waits while the server does not keep up."""
        from websockets.exceptions import ConnectionClosed

        try:
            await self._opened.send(data)
        except ConnectionClosed as closed:
            raise unreachable(self._url, self._asked, closed) from closed

    async def send_tagged(self, tag: int, data: bytes) -> None:
        head = bytes((tag,))
        for start in range(0, len(data), MAX_FRAME):
            await self.send(head + data[start : start + MAX_FRAME])

    async def close(self) -> None:
        await self._opened.close()
