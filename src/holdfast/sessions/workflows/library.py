"""Workflows and triggers: kept, changed and found. Who may do what: the tree that made one, and people.

A workflow that people made can be run by every session, and is changed by people alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from holdfast.api.errors import Conflict, InvalidRequest, NotFound
from holdfast.sessions.tools.caller import Caller, keyed_id
from holdfast.sessions.workflows.cron import parse_cron
from holdfast.sessions.workflows.definition import Definition, parse_definition
from holdfast.sessions.workflows.rows import WorkflowKind, WorkflowRow, WorkflowStore

MOST_WORKFLOWS: Final = 1_000
MOST_TRIGGERS: Final = 1_000
_LISTED: Final = 200
_SLUG: Final = re.compile(r"[^a-z0-9]+")
_PEOPLE: Final = "@people"
"""The owner of what people made. No session can have this id."""
TYPES: Final = ("schedule", "webhook", "manual")


class Library:
    def __init__(self, store: WorkflowStore, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock

    # --- workflows ---

    async def workflows(self, caller: Caller) -> list[WorkflowRow]:
        rows = await self._store.list(WorkflowKind.WORKFLOW, limit=MOST_WORKFLOWS)
        return [each for each in rows if _may_see(caller, each)]

    async def workflow(self, caller: Caller, id: str) -> WorkflowRow:
        """Returns a workflow by its id or slug. Raises `NotFound` also for those of other trees."""
        row = await self._store.get(WorkflowKind.WORKFLOW, id)
        if row is None:
            row = next((each for each in await self.workflows(caller) if each.document["slug"] == id), None)
        if row is None or not _may_see(caller, row):
            raise NotFound(f"there is no workflow {id[:128]!r}", hint="list them: holdfast workflow list SESSION")
        return row

    async def sync(self, caller: Caller, input: Mapping[str, Any]) -> WorkflowRow:
        """Create a workflow, or replace that of the same id or slug."""
        definition = parse_definition(input["data"])
        slug = slug_of(str(input.get("slug") or input["name"]))
        wanted = input.get("id")
        if wanted is not None:
            before: WorkflowRow | None = await self._own(caller, str(wanted))
        else:
            owner = _owner(caller)
            mine = (each for each in await self.workflows(caller) if each.document["owner"] == owner)
            before = next((each for each in mine if each.document["slug"] == slug), None)
        id = keyed_id("w", _owner(caller), slug) if before is None else before.id
        document = {
            "name": str(input["name"]),
            "slug": slug,
            "description": str(input.get("description", "")),
            "version": str(input.get("version", "")),
            "data": definition.json,
            "hash": definition.hash,
            "owner": _owner(caller) if before is None else before.document["owner"],
            "by": caller.name,
            "changedAt": self._clock(),
        }
        created = self._clock() if before is None else before.created_at
        return await self._put(WorkflowRow(WorkflowKind.WORKFLOW, id, "", document, created), MOST_WORKFLOWS)

    async def update(self, caller: Caller, input: Mapping[str, Any]) -> WorkflowRow:
        before = await self._own(caller, str(input["id"]))
        changed = {name: input[name] for name in ("name", "description", "version") if name in input}
        if "data" in input:
            definition = parse_definition(input["data"])
            changed |= {"data": definition.json, "hash": definition.hash}
        document = {**before.document, **changed, "by": caller.name, "changedAt": self._clock()}
        return await self._put(replace(before, document=document), MOST_WORKFLOWS)

    async def delete(self, caller: Caller, id: str) -> None:
        """Delete a workflow and its triggers. Executions in progress go on."""
        row = await self._own(caller, id)
        for trigger in await self._store.list(WorkflowKind.TRIGGER, group=row.id, limit=MOST_TRIGGERS):
            await self._store.remove(WorkflowKind.TRIGGER, trigger.id)
        await self._store.remove(WorkflowKind.WORKFLOW, row.id)

    async def _own(self, caller: Caller, id: str) -> WorkflowRow:
        row = await self.workflow(caller, id)
        if caller.person is None and row.document["owner"] != _owner(caller):
            raise Conflict(f"workflow {row.id} was made by people, and only they change it", hint="make another one")
        return row

    async def _put(self, row: WorkflowRow, most: int) -> WorkflowRow:
        if not await self._store.put(row, most):
            raise Conflict(f"there are {most} {row.kind.value}s, which is the limit", hint="delete some of them first")
        return row

    # --- triggers ---

    async def triggers(self, caller: Caller, input: Mapping[str, Any]) -> list[WorkflowRow]:
        rows = await self._store.list(WorkflowKind.TRIGGER, group=input.get("workflowId"), limit=MOST_TRIGGERS)
        return [
            each
            for each in rows
            if (caller.person is not None or each.document["owner"] == _owner(caller))
            and input.get("type") in (None, each.document["config"]["type"])
            and input.get("enabled") in (None, each.is_open)
        ][:_LISTED]

    async def trigger(self, caller: Caller, id: str) -> WorkflowRow:
        row = await self._store.get(WorkflowKind.TRIGGER, id)
        if row is None or (caller.person is None and row.document["owner"] != _owner(caller)):
            raise NotFound(f"there is no trigger {id[:128]!r}")
        return row

    async def create_trigger(self, caller: Caller, input: Mapping[str, Any]) -> WorkflowRow:
        """Its executions take place in the session of the caller."""
        if "workflowId" not in input:
            raise InvalidRequest("create_trigger needs workflowId")
        workflow = await self.workflow(caller, str(input["workflowId"]))
        config = check_config(input["config"])
        now = self._clock()
        document = {
            "name": str(input["name"]),
            "workflow": workflow.id,
            "session": caller.id,
            "owner": _owner(caller),
            "config": config,
            "variableMapping": check_mapping(input.get("variableMapping", {}), definition_of(workflow)),
            "generation": secrets.token_hex(16),
            "next": next_time(config, now),
            "by": caller.name,
        }
        id = caller.new_id("g", input)
        if (known := await self._store.get(WorkflowKind.TRIGGER, id)) is not None:
            return known
        row = WorkflowRow(WorkflowKind.TRIGGER, id, workflow.id, document, now, input.get("enabled", True))
        return await self._put(row, MOST_TRIGGERS)

    async def update_trigger(self, caller: Caller, input: Mapping[str, Any]) -> WorkflowRow:
        row = await self.trigger(caller, str(input["id"]))
        document = dict(row.document)
        if "name" in input:
            document["name"] = str(input["name"])
        if "config" in input:
            document["config"] = check_config(input["config"])
        if "variableMapping" in input:
            workflow = await self.workflow(caller, row.group)
            document["variableMapping"] = check_mapping(input["variableMapping"], definition_of(workflow))
        document["next"] = next_time(document["config"], self._clock())
        row = replace(row, document=document, is_open=input.get("enabled", row.is_open))
        return await self._put(row, MOST_TRIGGERS)

    async def delete_trigger(self, caller: Caller, id: str) -> None:
        row = await self.trigger(caller, id)
        await self._store.remove(WorkflowKind.TRIGGER, row.id)

    # --- for the engine ---

    async def find_trigger(self, id: str) -> WorkflowRow | None:
        return await self._store.get(WorkflowKind.TRIGGER, id)

    async def find_workflow(self, id: str) -> WorkflowRow | None:
        return await self._store.get(WorkflowKind.WORKFLOW, id)

    async def due_triggers(self, now: int) -> list[WorkflowRow]:
        """Returns the triggers by schedule whose time has come."""
        rows = await self._store.list(WorkflowKind.TRIGGER, only_open=True, limit=MOST_TRIGGERS)
        return [each for each in rows if each.document["next"] is not None and each.document["next"] <= now]

    async def set_next(self, row: WorkflowRow, now: int) -> None:
        """Plan the next time of a trigger, if nobody has changed or deleted it meanwhile."""
        current = await self._store.get(WorkflowKind.TRIGGER, row.id)
        if current == row:
            document = {**row.document, "next": next_time(row.document["config"], now)}
            await self._store.put(replace(row, document=document))

    async def disable_trigger(self, row: WorkflowRow, why: str) -> None:
        current = await self._store.get(WorkflowKind.TRIGGER, row.id)
        if current is not None:
            await self._store.put(replace(current, is_open=False, document={**current.document, "why": why}))


def slug_of(name: str) -> str:
    slug = _SLUG.sub("-", name.lower()).strip("-")[:64]
    if not slug:
        raise InvalidRequest(f"{name[:64]!r} has neither letters nor digits")
    return slug


def definition_of(workflow: WorkflowRow) -> Definition:
    return parse_definition(workflow.document["data"])


def check_config(config: Any) -> dict[str, Any]:
    """Returns the configuration of a trigger. Raises `InvalidRequest`."""
    kind = config.get("type") if isinstance(config, dict) else None
    if kind not in TYPES:
        raise InvalidRequest(f"config.type must be one of {', '.join(TYPES)}")
    allowed = {"type", "cron"} if kind == "schedule" else {"type"}
    if unknown := config.keys() - allowed:
        raise InvalidRequest(f"config takes no {sorted(map(str, unknown))[0][:64]!r}")
    if kind == "schedule":
        if not isinstance(config.get("cron"), str):
            raise InvalidRequest("a schedule needs config.cron: minute hour day month weekday, in UTC")
        parse_cron(config["cron"])
    return dict(config)


def check_mapping(mapping: Any, definition: Definition) -> dict[str, str]:
    """Returns which variable of a workflow gets which part of a webhook's body. Raises `InvalidRequest`."""
    if not isinstance(mapping, dict) or not all(
        isinstance(each, str) and len(each) <= 200 for each in mapping.values()
    ):
        raise InvalidRequest("variableMapping must be an object of variables and paths, such as body.ref")
    definition.with_defaults(dict.fromkeys(mapping, ""))
    return dict(mapping)


def next_time(config: Mapping[str, Any], now: int) -> int | None:
    return parse_cron(str(config["cron"])).next_after(now) if config["type"] == "schedule" else None


def map_variables(mapping: Mapping[str, str], body: Any) -> dict[str, str]:
    """Returns the variables that a webhook sets. A path that leads nowhere sets none."""
    found: dict[str, str] = {}
    for name, path in mapping.items():
        value: Any = {"body": body}
        for part in path.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if isinstance(value, str | int | float | bool):
            found[name] = str(value)[: 16 * 1024].replace("\0", "")
    return found


def _owner(caller: Caller) -> str:
    return _PEOPLE if caller.person is not None else caller.root


def _may_see(caller: Caller, row: WorkflowRow) -> bool:
    return caller.person is not None or row.document["owner"] in (_PEOPLE, caller.root)
