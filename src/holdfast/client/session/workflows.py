"""Executions of workflows: `client.workflows`. Needs an API key.

Workflows and triggers are made by the tools of a session: `client.sessions.call_tool(session, "sync_workflow", …)`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from holdfast.api.session.workflows import CancelExecution, Decision, ExecutionInfo
from holdfast.client.connection import ServerConnection
from holdfast.client.resource import LONG_SECONDS, Resource

_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 2.0


class Workflows:
    """The executions of workflows on one server."""

    def __init__(self, connection: ServerConnection) -> None:
        self._executions = Resource(connection, "/v1/workflow-executions")
        self._sessions = Resource(connection, "/v1/sessions")

    async def run(
        self, session: str, workflow: str, *, variables: Mapping[str, str] | None = None, key: str | None = None
    ) -> ExecutionInfo:
        """Start an execution of a workflow, by its id or slug, in a session."""
        given: dict[str, Any] = {"workflowId": workflow, "variables": dict(variables or {})}
        given |= {} if key is None else {"key": key}
        answer = await self._sessions.below(session, "tools", "run_workflow").ask(
            "POST", "", given, repeatable=key is not None, timeout=LONG_SECONDS
        )
        return await self.get(str(answer.read(lambda found: found["execution"]["executionId"])))

    async def get(self, id: str) -> ExecutionInfo:
        return (await self._executions.below(id).ask("GET")).read(ExecutionInfo.from_json)

    async def wait(self, id: str) -> ExecutionInfo:
        """Wait until an execution has ended or waits for approval, and return it."""
        pause = _PAUSE
        while True:
            found = await self.get(id)
            if found.status != "running":
                return found
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def approve(
        self, id: str, resume_token: str, *, approve: bool = True, reason: str | None = None
    ) -> ExecutionInfo:
        """Approve or deny the step that waits. Its token is in `get(id).requires_approval`."""
        document = Decision(approve=approve, resume_token=resume_token, reason=reason).to_request()
        answer = await self._executions.below(id).ask("POST", "/approve", document, repeatable=False)
        return answer.read(ExecutionInfo.from_json)

    async def cancel(self, id: str, *, reason: str | None = None) -> ExecutionInfo:
        answer = await self._executions.below(id).ask("POST", "/cancel", CancelExecution(reason=reason).to_request())
        return answer.read(ExecutionInfo.from_json)
