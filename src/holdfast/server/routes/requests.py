"""What routes share: opening a box for one request, bodies, streams, and requests that end when the client leaves."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, TypeVar

from fastapi import Request

from holdfast.api.box.box import Box
from holdfast.api.box.records import Preview
from holdfast.boxes.service.boxes import Boxes
from holdfast.disconnect import work_until_disconnect
from holdfast.server.routes.services import Services, documented
from holdfast.server.shutdown import close_pieces

T = TypeVar("T")

OCTETS: Final = "application/octet-stream"
TAR: Final = "application/x-tar"

_ADDRESS_SECONDS: Final = 12 * 3600

BOX_ERRORS: Final = documented(
    (400, "The request is invalid."),
    (401, "No credential, or an invalid one."),
    (403, "The credential, the provider or the permissions of a file do not allow this."),
    (404, "There is no such box, snapshot, volume, process or file."),
    (409, "Its state or kind does not allow this."),
    (410, "The box or the process is gone."),
    (413, "The body or the answer is too large."),
    (414, "The URL is too long."),
    (422, "A field is missing or wrong, or the provider cannot do this."),
    (500, "The box could not be created, or the server failed."),
    (502, "Nothing listens on that port in the box."),
    (503, "The box does not answer now, or this machine cannot isolate boxes."),
    (504, "The command did not end in time."),
    (507, "The disk is full."),
)


def binary_answer(description: str, media_type: str = OCTETS) -> dict[int | str, dict[str, Any]]:
    schema = {"type": "string", "format": "binary"}
    return {200: {"description": description, "content": {media_type: {"schema": schema}}}}


def binary_body(media_type: str = OCTETS) -> dict[str, Any]:
    schema = {"type": "string", "format": "binary"}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def preview_of(services: Services, request: Request, box: str, port: int) -> Preview:
    """The URL of a port of a box, for a browser that reaches us as the caller of this request does."""
    host = request.headers.get("host") or "localhost"
    return Preview(services.previews.url(request.url.scheme, host, box, port))


async def address_of(services: Services, request: Request, box: str, port: int) -> Preview:
    """The URL of a port of a box whose host and port are all that a visitor needs."""
    token = services.previews.preview_token(box, port, _ADDRESS_SECONDS) if services.previews.required else None
    return Preview(await services.links.link(request, box, port, token))


@contextlib.asynccontextmanager
async def opened(boxes: Boxes, id: str) -> AsyncIterator[Box]:
    """Open a box for one request."""
    with boxes.using(id):
        async with await boxes.open(id) as box:
            yield box


@contextlib.asynccontextmanager
async def opened_for_work(boxes: Boxes, id: str) -> AsyncIterator[Box]:
    """Open a box for one request that counts as the work of a one-shot box."""
    with boxes.working(id):
        async with await boxes.open(id) as box:
            yield box


async def began(pieces: AsyncIterator[bytes], held: contextlib.AsyncExitStack | None = None) -> AsyncIterator[bytes]:
    """Answer with a stream, after waiting for its first piece: a failure until then gets a proper error response.

    `held` is what the stream needs, and is closed with it.
    """
    resources = held or contextlib.AsyncExitStack()
    resources.push_async_callback(close_pieces, pieces)
    try:
        first = await anext(pieces, b"")
    except BaseException:
        await resources.aclose()
        raise

    async def all_of_it() -> AsyncIterator[bytes]:
        async with resources:
            yield first
            async for piece in pieces:
                yield piece

    return all_of_it()


async def held_box(boxes: Boxes, id: str) -> tuple[Box, contextlib.AsyncExitStack]:
    """Open a box for a stream that outlives the handling of its request."""
    stack = contextlib.AsyncExitStack()
    stack.enter_context(boxes.using(id))
    try:
        box = await boxes.open(id)
    except BaseException:
        await stack.aclose()
        raise
    stack.push_async_callback(box.close)
    return box, stack


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`, which is cancelled when the client leaves."""
    return await work_until_disconnect(request.receive, work, ClientLeft)


class ClientLeft(Exception):
    """The client has left."""
