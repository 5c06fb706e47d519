"""The operations on workflows: for sessions, and for people, who may use those of all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from holdfast.api.errors import NotFound, TooManyRequests, Unauthorized
from holdfast.api.ids import new_id
from holdfast.change_limit import ChangeLimit
from holdfast.sessions.tools.caller import Caller, Handler, SessionTree
from holdfast.sessions.workflows.engine import Executions
from holdfast.sessions.workflows.execution import Execution
from holdfast.sessions.workflows.library import Library, map_variables
from holdfast.sessions.workflows.rows import WorkflowRow
from holdfast.sessions.workflows.signatures import WorkflowKeys, check_webhook

_LISTED: Final = 50
_SEARCHED: Final = 1_000


class Workflows:
    def __init__(
        self,
        library: Library,
        executions: Executions,
        keys: WorkflowKeys,
        tree: SessionTree,
        limit: ChangeLimit,
        hook_mark: str = "",
    ) -> None:
        """`limit` is for webhooks, by trigger. `hook_mark` is what the names of webhooks begin with: it names the
        tenant.
        """
        self._library = library
        self.executions = executions
        self._keys = keys
        self._tree = tree
        self._limit = limit
        self._hook_mark = hook_mark

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "list_workflows": self.list,
            "sync_workflow": self.sync,
            "run_workflow": self.run,
            "list_executions": self.list_executions,
            "get_workflow": self.get,
            "update_workflow": self.update,
            "delete_workflow": self.delete,
            "list_triggers": self.list_triggers,
            "create_trigger": self.create_trigger,
            "update_trigger": self.update_trigger,
            "run_trigger": self.run_trigger,
            "delete_trigger": self.delete_trigger,
            "get_execution": self.get_execution,
            "execution_steps": self.execution_steps,
            "approve_execution": self.approve,
            "cancel_execution": self.cancel,
        }

    # --- workflows ---

    async def list(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        found = await self._library.workflows(caller)
        return {"workflows": [_workflow(each, whole=False) for each in found]}

    async def sync(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return {"success": True, "workflow": _workflow(await self._library.sync(caller, input))}

    async def get(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return {"workflow": _workflow(await self._library.workflow(caller, str(input["id"])))}

    async def update(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return {"workflow": _workflow(await self._library.update(caller, input))}

    async def delete(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        await self._library.delete(caller, str(input["id"]))
        return {"success": True}

    async def run(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        workflow = await self._library.workflow(caller, str(input["workflowId"]))
        id = caller.new_id("t", {} if "key" not in input else {"key": f"workflow {input['key']}"})
        done = await self.executions.run(id, workflow, caller.id, input.get("variables", {}), by=caller.name)
        return {"execution": done}

    # --- triggers ---

    async def list_triggers(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return {"triggers": [_trigger(each) for each in await self._library.triggers(caller, input)]}

    async def create_trigger(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        row = await self._library.create_trigger(caller, input)
        shown = _trigger(row)
        if row.document["config"]["type"] == "webhook":
            # Whoever creates it gives this to the sender. It follows from the trigger, and is stored nowhere.
            shown["path"] = f"/v1/hooks/{self._hook_mark}{row.id}"
            shown["secret"] = self._keys.webhook_secret(row.id, row.document["generation"])
        return {"trigger": shown}

    async def update_trigger(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        return {"trigger": _trigger(await self._library.update_trigger(caller, input))}

    async def run_trigger(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        row = await self._library.trigger(caller, str(input["id"]))
        occasion = f"by hand {input.get('key') or new_id('e')}"
        return {"execution": await self.executions.fire(row, occasion, input.get("variables", {}), by=caller.name)}

    async def delete_trigger(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        await self._library.delete_trigger(caller, str(input["id"]))
        return {"success": True}

    async def webhook(
        self, trigger: str, timestamp: str | None, signature: str | None, body: bytes, now: int
    ) -> dict[str, Any]:
        """Start the workflow of a trigger by a signed request from anywhere. A repetition starts nothing."""
        trigger = trigger.removeprefix(self._hook_mark)
        row = await self._library.find_trigger(trigger)
        generation = 0 if row is None else row.document["generation"]
        # Also for a trigger that is not there, so that the time tells nothing.
        delivery = check_webhook(self._keys.webhook_secret(trigger, generation), timestamp, signature, body, now)
        if row is None or not row.is_open or row.document["config"]["type"] != "webhook":
            raise Unauthorized("there is no such webhook, or its signature is wrong or too old")
        try:
            self._limit.spend(trigger)
        except TooManyRequests:
            raise TooManyRequests("this webhook comes too often: wait a little") from None
        try:
            document = orjson.loads(body or b"{}")
        except orjson.JSONDecodeError:
            document = {}
        variables = map_variables(row.document["variableMapping"], document)
        done = await self.executions.fire(row, f"webhook {delivery}", variables, by=row.id)
        return {"executionId": done["executionId"], "status": done["status"]}

    # --- executions ---

    async def list_executions(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        rows = await self.executions.list(input.get("workflowId"), _SEARCHED)
        found: list[dict[str, Any]] = []
        for row in rows:
            if len(found) >= input.get("limit", _LISTED):
                break
            try:
                if caller.person is None:
                    await self._tree.in_tree(caller, row.document["session"])
                found.append(await self.executions.get(row.id))
            except NotFound:
                continue
        return {"executions": found}

    async def get_execution(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        id, _ = await self._own(caller, input)
        return {"execution": await self.executions.get(id, with_token=caller.person is not None)}

    async def execution_steps(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        id, _ = await self._own(caller, input)
        return {"steps": await self.executions.steps(id)}

    async def approve(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        id, _ = await self._own(caller, input)
        token, reason = str(input["resumeToken"]), input.get("reason")
        done = await self.executions.approve(id, input["approve"], token, reason=reason, by=caller.name)
        return {"execution": done}

    async def cancel(self, caller: Caller, input: Mapping[str, Any]) -> dict[str, Any]:
        id, _ = await self._own(caller, input)
        return {"execution": await self.executions.cancel(id, reason=input.get("reason"), by=caller.name)}

    async def _own(self, caller: Caller, input: Mapping[str, Any]) -> tuple[str, Execution]:
        """Returns an execution in a session of the caller's tree. Raises `NotFound`."""
        id = str(input["id"])
        found = await self.executions.find(id)
        if caller.person is None:
            try:
                await self._tree.in_tree(caller, found.session)
            except NotFound:
                raise NotFound(f"there is no execution {id[:128]!r}") from None
        return id, found


def _workflow(row: WorkflowRow, *, whole: bool = True) -> dict[str, Any]:
    names = ("name", "slug", "description", "version", "hash", "owner")
    shown = {"id": row.id, **{name: row.document[name] for name in names}, "createdAt": row.created_at}
    return {**shown, "data": row.document["data"]} if whole else shown


def _trigger(row: WorkflowRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.document["name"],
        "workflowId": row.group,
        "sessionId": row.document["session"],
        "config": dict(row.document["config"]),
        "variableMapping": dict(row.document["variableMapping"]),
        "enabled": row.is_open,
        "nextAt": row.document["next"],
        "why": row.document.get("why"),
        "createdAt": row.created_at,
    }
