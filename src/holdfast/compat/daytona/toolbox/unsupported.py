"""Routes of the toolbox that boxes cannot serve. They say so at once, with what to do in place of them."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.compat.daytona.errors import not_supported
from holdfast.compat.daytona.service import daytona_of


async def computer_use(request: Request) -> Response:
    await daytona_of(request).sandbox(request)
    raise not_supported("sandboxes of this server have no desktop, so computer use is not supported")


def routes() -> list[Route]:
    methods = ["GET", "POST", "DELETE"]
    return [Route("/computeruse/{rest:path}", computer_use, methods=methods)]
