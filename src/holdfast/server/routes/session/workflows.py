"""REST: executions of workflows for people, and the webhooks that start them.

Workflows and triggers themselves are made by the tools of a session: `POST /v1/sessions/{id}/tools/sync_workflow`.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header
from starlette.requests import Request

from holdfast.api.errors import TooLarge
from holdfast.api.limits import Printable, ThreadId
from holdfast.api.session.workflows import CancelExecution, Decision, ExecutionInfo, FiredWebhook, execution_of
from holdfast.server.routes.requests import BOX_ERRORS
from holdfast.server.routes.services import Administrator, Use
from holdfast.sessions.workflows.engine import Executions
from holdfast.sessions.workflows.signatures import SIGNATURE, TIMESTAMP

router = APIRouter(prefix="/v1", tags=["workflows"], responses=BOX_ERRORS)
_MOST_BODY = 1024 * 1024


async def _executions(services: Use, _: Administrator) -> Executions:
    return (await services.session_tools.get()).workflows.executions


UseExecutions = Annotated[Executions, Depends(_executions)]


@router.get("/workflow-executions/{id}")
async def get_execution(id: ThreadId, executions: UseExecutions) -> ExecutionInfo:
    """Get an execution of a workflow, with its steps, and the resume token of the one that waits for approval."""
    return await _info(executions, id)


@router.post("/workflow-executions/{id}/approve")
async def approve_execution(
    id: ThreadId, decision: Decision, executions: UseExecutions, grant: Administrator
) -> ExecutionInfo:
    """Approve or deny the step that waits."""
    await executions.approve(id, decision.approve, decision.resume_token, reason=decision.reason, by=grant.caller.user)
    return await _info(executions, id)


@router.post("/workflow-executions/{id}/cancel")
async def cancel_execution(
    id: ThreadId, executions: UseExecutions, grant: Administrator, cancel: CancelExecution | None = None
) -> ExecutionInfo:
    """Cancel an execution. One that has ended is left unchanged."""
    await executions.cancel(id, reason=None if cancel is None else cancel.reason, by=grant.caller.user)
    return await _info(executions, id)


@router.post("/hooks/{trigger}", status_code=202)
async def fire_webhook(
    trigger: Printable,
    request: Request,
    services: Use,
    timestamp: Annotated[str | None, Header(alias=TIMESTAMP)] = None,
    signature: Annotated[str | None, Header(alias=SIGNATURE)] = None,
) -> FiredWebhook:
    """Start the workflow of a trigger. Needs no key but the signature of the trigger: docs/workflows.md."""
    tools = await services.session_tools.get()
    body = await read_body(request)
    fired = await tools.workflows.webhook(trigger, timestamp, signature, body, tools.clock())
    return FiredWebhook(execution_id=fired["executionId"], status=fired["status"])


async def read_body(request: Request) -> bytes:
    pieces, size = [], 0
    async for piece in request.stream():
        size += len(piece)
        if size > _MOST_BODY:
            raise TooLarge(f"the body of a webhook has at most {_MOST_BODY} bytes")
        pieces.append(piece)
    return b"".join(pieces)


async def _info(executions: Executions, id: str) -> ExecutionInfo:
    return execution_of(await executions.get(id, with_token=True), await executions.steps(id))
