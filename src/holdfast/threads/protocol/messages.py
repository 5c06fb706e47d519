"""Requests and responses of the stream protocol, independent of any server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol

import orjson

from holdfast.api.errors import Refused

Headers = list[tuple[bytes, bytes]]

JSON_TYPE: Final = (b"content-type", b"application/json")


class Request:
    """One request of the stream protocol, with its whole body."""

    __slots__ = ("body", "headers", "id", "method", "path", "query")

    def __init__(
        self, method: str, path: str, query: bytes, headers: dict[bytes, bytes], body: bytes = b"", id: str = ""
    ) -> None:
        self.method = method
        self.path = path
        """The part after `/v1/stream/`, decoded and validated."""
        self.query = query
        self.headers = headers
        """With lower-case names."""
        self.body = body
        self.id = id
        """For logs and problem reports."""

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class Rest(NamedTuple):
    """The part of a body that is read while it is sent, as fast as the client receives it."""

    length: int
    pieces: AsyncIterator[bytes]
    """Yields `length` bytes in total. If it raises, the response is cut off."""


class Response(NamedTuple):
    status: int
    headers: Headers
    body: bytes = b""
    rest: Rest | None = None
    """Sent after `body`."""


class Channel(Protocol):
    """A response that is written in parts. The connection owns it, and either side may end it."""

    def start(self, response: Response) -> None:
        """Send the status, the headers and the body so far."""
        ...

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """End the response. Calling it again does nothing."""
        ...

    @property
    def congested(self) -> bool:
        """The client reads more slowly than we write. The writer should stop and `drain`."""
        ...

    async def drain(self) -> None: ...


def error_body(code: str, message: str, request_id: str, hint: str | None = None) -> bytes:
    """Returns the JSON of an error, in the one format that all routes use."""
    error = {"code": code, "message": message}
    if hint is not None:
        error["hint"] = hint
    error["requestId"] = request_id
    return orjson.dumps({"error": error})


def error_response(error: Refused, request_id: str) -> Response:
    return Response(
        error.status, [JSON_TYPE, *error.headers], error_body(error.code, error.message, request_id, error.hint)
    )
