"""What the routes have in common: bodies with a limit, query parameters, and work that ends when the client leaves."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from holdfast.compat.daytona.http.errors import ApiError, bad_request
from holdfast.disconnect import work_until_disconnect

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

MAX_BODY: Final = 16 * 1024 * 1024
NO_CONTENT: Final = 204


class ClientLeft(ApiError):
    """Nobody is there to read the answer."""

    def __init__(self) -> None:
        super().__init__(499, "the client left")


def answer(document: Any, status: int = 200) -> Response:
    return Response(json.dumps(document), status, media_type="application/json")


def nothing(status: int = 200) -> Response:
    return Response(status_code=status)


async def body_of(request: Request, kind: type[M]) -> M:
    """Returns the JSON body of a request. An empty body stands for an empty object."""
    return kind.model_validate_json(await read_body(request) or b"{}")


async def read_body(request: Request, limit: int = MAX_BODY) -> bytes:
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > limit:
            raise ApiError(413, f"a request body has at most {limit} bytes")
        pieces.append(piece)
    return b"".join(pieces)


def text_of(connection: HTTPConnection, name: str, default: str | None = None) -> str:
    """A query parameter. Raises if it is missing and there is no default."""
    value = connection.query_params.get(name, default)
    if value is None or "\0" in value or len(value.encode("utf-8", "replace")) > 65_536:
        raise bad_request(f"the query parameter {name} is missing or malformed")
    return value


def number_of(connection: HTTPConnection, name: str, default: int, least: int, most: int) -> int:
    text = connection.query_params.get(name)
    return default if text is None or text == "" else number_in(text, name, least, most)


def number_in(text: str, name: str, least: int, most: int) -> int:
    digits = text.removesuffix(".0").removeprefix("-")
    if not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise bad_request(f"{name} {text[:50]!r}: a number is expected")
    value = int(text.removesuffix(".0"))
    if not least <= value <= most:
        raise bad_request(f"{name} {value}: a number from {least} to {most} is expected")
    return value


def flag_of(connection: HTTPConnection, name: str) -> bool | None:
    text = connection.query_params.get(name)
    if text is None or text == "":
        return None
    return flag_in(text, name)


def flag_in(text: str, name: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise bad_request(f"{name} {text[:50]!r}: true or false is expected")
    return text.lower() in ("true", "1")


def port_of(connection: HTTPConnection) -> int:
    return number_in(connection.path_params["port"], "port", 1, 65_535)


def time_of(connection: HTTPConnection, name: str) -> int | None:
    """A time of the query, in UTC milliseconds."""
    text = connection.query_params.get(name)
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text.replace(" ", "+").replace("Z", "+00:00"))
    except ValueError:
        raise bad_request(f"{name} {text[:50]!r}: a time such as 2026-01-31T12:00:00Z is expected") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Returns the result of some work, which is cancelled when the client leaves. The body must have been read."""
    return await work_until_disconnect(request.receive, work, ClientLeft)
