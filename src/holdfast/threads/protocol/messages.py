"""Requests and responses of the stream surface, apart from any server: what came in, what goes out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final, NamedTuple, Protocol

import orjson

from holdfast.api.errors import Refused

Headers = list[tuple[bytes, bytes]]

JSON_TYPE: Final = (b"content-type", b"application/json")


class Request:
    """One request to the stream surface, its body read whole."""

    __slots__ = ("body", "headers", "id", "method", "path", "query")

    def __init__(
        self, method: str, path: str, query: bytes, headers: dict[bytes, bytes], body: bytes = b"", id: str = ""
    ) -> None:
        self.method = method
        self.path = path
        """After `/v1/stream/`, decoded and checked."""
        self.query = query
        self.headers = headers
        """Names in lower case."""
        self.body = body
        self.id = id
        """For logs, and for people who report a problem."""

    def header(self, name: bytes) -> str | None:
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")


class Rest(NamedTuple):
    """The part of a body that is read as it is sent, at the pace of whoever receives it."""

    length: int
    pieces: AsyncIterator[bytes]
    """So many bytes in all. Where it raises, the response is broken off."""


class Response(NamedTuple):
    status: int
    headers: Headers
    body: bytes = b""
    rest: Rest | None = None
    """What comes after the body."""


class Channel(Protocol):
    """A response that is written as it comes. Owned by the connection; ended by either side."""

    def start(self, response: Response) -> None:
        """Send status and headers (and the body so far)."""
        ...

    def write(self, data: bytes) -> None: ...

    def finish(self) -> None:
        """End the response. Calling it again does nothing."""
        ...

    @property
    def congested(self) -> bool:
        """The client reads more slowly than we write: stop, and `drain`."""
        ...

    async def drain(self) -> None: ...


def error_body(code: str, message: str, request_id: str, hint: str | None = None) -> bytes:
    """The one shape of errors, on every surface."""
    error = {"code": code, "message": message}
    if hint is not None:
        error["hint"] = hint
    error["requestId"] = request_id
    return orjson.dumps({"error": error})


def error_response(error: Refused, request_id: str) -> Response:
    return Response(
        error.status, [JSON_TYPE, *error.headers], error_body(error.code, error.message, request_id, error.hint)
    )
