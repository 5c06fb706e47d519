"""REST: the operations of sessions, for people: everything that an agent could ask for, in the name of its session."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends

from holdfast.api.limits import ThreadId
from holdfast.api.tools.records import ToolList, ToolRecord
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import Administrator, Use
from holdfast.server.session.tools import ServerTools

router = APIRouter(prefix="/v1", tags=["session tools"], responses=BOX_ERRORS)


async def _tools(services: Use, _: Administrator) -> ServerTools:
    return await services.session_tools.get()


UseTools = Annotated[ServerTools, Depends(_tools)]


@router.get("/session-tools")
async def list_tools(tools: UseTools) -> ToolList:
    """List the operations that sessions can be allowed to use."""
    return ToolList(tools=tuple(map(ToolRecord.of, tools.operations.operations)))


@router.post("/sessions/{id}/tools/{name}")
async def call_tool(
    id: ThreadId, name: str, tools: UseTools, grant: Administrator, given: Annotated[dict[str, Any], Body()]
) -> dict[str, Any]:
    """Call an operation in the name of a session, whether its agent may use it or not."""
    return await tools.operations.call(id, name, given, person=grant.caller.user)
