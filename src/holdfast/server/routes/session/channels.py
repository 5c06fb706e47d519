"""REST: what Telegram and Slack tell a session about chats that it takes part in. Each request is signed by them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.requests import Request

from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import Use
from holdfast.server.routes.session.workflows import read_body

router = APIRouter(prefix="/v1", tags=["channels"], responses=BOX_ERRORS)


@router.post("/channel-events/{name}/{kind}")
async def receive_event(
    name: Annotated[str, Path(max_length=200)],
    kind: Annotated[str, Path(max_length=32)],
    request: Request,
    services: Use,
) -> dict[str, Any]:
    """Take an event of Telegram or Slack. Needs no key but their secret or signature: docs/channels.md."""
    tools = await services.session_tools.get()
    body = await read_body(request)
    return await tools.channels.receive(name, kind, request.headers, body, tools.clock())
