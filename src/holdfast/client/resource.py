"""Requests and WebSockets below one path of the server. The parts of a client use it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from holdfast.api.errors import error_from_document
from holdfast.client.connection import Answer, Parameters, ServerConnection, encode_json, not_understood
from holdfast.client.transport.websockets import keep_trying, open_socket, unreachable, words_of

if TYPE_CHECKING:
    import httpx
    from websockets.asyncio.client import ClientConnection

    from holdfast.client.transport.blocking import BlockingSocket

LONG_SECONDS: Final = 600.0
"""For slow operations: creating, stopping, saving and deleting boxes."""
MAX_FRAME: Final = 256 * 1024

STDIN: Final = 0
STDOUT: Final = 1
STDERR: Final = 2
END: Final = 4


class Resource:
    """Sends requests about one resource with a path: all boxes, or one of them."""

    def __init__(self, connection: ServerConnection, path: str) -> None:
        self._connection = connection
        self.path = path

    @property
    def url(self) -> str:
        return self._connection.url

    def below(self, *parts: str) -> Resource:
        return Resource(self._connection, "/".join((self.path, *(quote(part, safe="") for part in parts))))

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
        return await self._connection.ask(
            method,
            self.path + path,
            parameters=parameters,
            body=encode_json(document) if document is not None else body,
            repeatable=repeatable,
            timeout=timeout,
        )

    def exchange(
        self,
        method: str,
        path: str,
        *,
        parameters: Parameters = (),
        body: AsyncIterable[bytes] | bytes | None = None,
        media_type: str = "application/octet-stream",
        silence: float | None = None,
    ) -> AbstractAsyncContextManager[httpx.Response]:
        return self._connection.exchange(
            method, self.path + path, parameters=parameters, body=body, media_type=media_type, silence=silence
        )

    async def open_socket(self, path: str, parameters: Parameters = ()) -> Socket:
        """Open a WebSocket, retrying while the server is unreachable. The caller closes it."""
        place = self.path + path
        opened = await open_socket(self._connection, place, parameters)
        return Socket(opened, self._connection.url, words_of(place))

    async def open_blocking_socket(self, path: str) -> BlockingSocket:
        """Like `open_socket`, but without an event loop."""
        from holdfast.client.transport.blocking import open_socket_once

        return await keep_trying(self._connection, lambda: open_socket_once(self._connection, self.path + path))


def read_frame(frame: bytes | str, asked: str) -> bytes | dict[str, Any]:
    """Returns tagged bytes unchanged, and JSON as a dict. Raises the error that the server reports in it."""
    if isinstance(frame, bytes):
        return frame
    try:
        told = json.loads(frame)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise not_understood(f"a frame of {asked} cannot be read: {frame[:80]!r}")
    if isinstance(problem := told.get("error"), dict):
        raise error_from_document(problem)
    return told


def exit_of(frame: dict[str, Any]) -> int:
    """Returns the exit code in a frame."""
    code = frame.get("exit")
    if not isinstance(code, int):
        raise not_understood(f"unexpected frame: {frame}")
    return code


class Socket:
    """A WebSocket to something in a box. Frames are tagged bytes, or JSON with the result."""

    def __init__(self, opened: ClientConnection, url: str, asked: str) -> None:
        self._opened = opened
        self._url = url
        self._asked = asked

    async def receive(self) -> bytes | dict[str, Any]:
        """Returns the next frame. Raises the error that the server sent, or `Unreachable` if the connection is lost."""
        from websockets.exceptions import ConnectionClosed

        try:
            frame = await self._opened.recv()
        except ConnectionClosed as closed:
            raise unreachable(self._url, self._asked, closed) from closed
        return read_frame(frame, self._asked)

    async def send(self, data: bytes | str) -> None:
        """Send a frame. Waits while the server is not keeping up."""
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
        try:
            await self._opened.close()
        finally:
            self._opened.transport.abort()  # do not wait for the other side to close
