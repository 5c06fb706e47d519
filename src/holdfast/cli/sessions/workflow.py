"""`holdfast workflow`: steps that are carried out one after the other in a session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_session
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.sessions.commands import SessionArgument
from holdfast.cli.terminal.console import Cell, hint, note, write_field, write_json, write_line, write_table
from holdfast.visible_text import visible

if TYPE_CHECKING:
    from holdfast.api.session.workflows import ExecutionInfo
    from holdfast.client import Client

ExecutionArgument = Annotated[str, Argument(metavar="EXECUTION", help="Id of the execution.", show_default=False)]
_STYLES: Final = {"ok": "green", "failed": "red", "needs_approval": "yellow", "cancelled": "yellow"}


def sync(
    session: SessionArgument,
    file: Annotated[Path, Argument(metavar="FILE", help="The definition, as JSON: name, variables and steps.")],
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Create a workflow from a file, or replace the one of the same name. Every session can run it.

    \b
    holdfast workflow sync t-3kd9 deploy.json
    """
    document: Any = None
    why = ""
    try:
        document = json.loads(file.read_text())
    except OSError as error:
        why = (error.strerror or str(error)).lower()
    except ValueError as error:
        why = f"it is not JSON: {error}"
    else:
        if not isinstance(document, dict):
            why = "it is not an object"
        elif "name" not in document:
            why = "it has no name"
    if why:
        raise CommandError(
            f"cannot read a workflow from {file}: {why}",
            next_step='write JSON: {"name": "…", "steps": [{"id": "a", "type": "agent", "prompt": "…"}]}',
            exit=Exit.USAGE,
        )
    name = document.pop("name")

    async def work(client: Client) -> dict[str, Any]:
        id = await find_session(client, session)
        done = await client.sessions.call_tool(id, "sync_workflow", {"name": name, "data": document})
        return dict(done["workflow"])

    made = ask(where, work)
    if as_json:
        write_json(made)
    else:
        write_field("workflow", Cell(made["slug"], "bold"), Cell(f"  {made['id']}", "dim"))
        note("next", hint(f"holdfast workflow run {session} {made['slug']}"))


def list_(session: SessionArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """List workflows, and the latest executions of those."""

    async def work(client: Client) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        id = await find_session(client, session)
        workflows = await client.sessions.call_tool(id, "list_workflows")
        executions = await client.sessions.call_tool(id, "list_executions", {"limit": 20})
        return workflows["workflows"], executions["executions"]

    workflows, executions = ask(where, work)
    if as_json:
        write_json({"workflows": workflows, "executions": executions})
        return
    write_table(
        ("workflow", "name", "made by"),
        [[Cell(each["slug"], "bold"), each["name"], each["owner"]] for each in workflows],
    )
    if executions:
        rows: list[list[Cell | str]] = [
            [
                Cell(each["executionId"], "bold"),
                each["name"],
                Cell(each["status"], _STYLES.get(each["status"], "")),
                each["sessionId"],
            ]
            for each in executions
        ]
        write_table(("execution", "workflow", "status", "session"), rows)


def run(
    session: SessionArgument,
    workflow: Annotated[str, Argument(metavar="WORKFLOW", help="Its slug or id.", show_default=False)],
    variables: Annotated[
        list[str] | None, Argument(metavar="[NAME=VALUE]…", help="Its variables.", show_default=False)
    ] = None,
    wait: Annotated[bool, Option("--wait", help="Wait until it has ended or needs approval.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Start a workflow in a session.

    \b
    holdfast workflow run t-3kd9 deploy version=1.2 --wait
    """
    given: dict[str, str] = {}
    for each in variables or ():
        name, equals, value = each.partition("=")
        if not equals:
            raise CommandError(f"{each!r} is not NAME=VALUE", next_step="write NAME=VALUE", exit=Exit.USAGE)
        given[name] = value

    async def work(client: Client) -> ExecutionInfo:
        started = await client.workflows.run(await find_session(client, session), workflow, variables=given)
        return await client.workflows.wait(started.id) if wait else started

    return _print(ask(where, work), as_json=as_json)


def show(execution: ExecutionArgument, *, where: Where, as_json: JsonOption = False) -> Exit:
    """Show an execution: its steps, and what it waits for."""

    async def work(client: Client) -> ExecutionInfo:
        return await client.workflows.get(execution)

    return _print(ask(where, work), as_json=as_json)


def approve(
    execution: ExecutionArgument,
    deny: Annotated[bool, Option("--deny", help="Deny it: the execution ends as failed.")] = False,
    reason: Annotated[str | None, Option("--reason", metavar="TEXT", help="Why, for the record.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Approve or deny the step that an execution waits at."""

    async def work(client: Client) -> ExecutionInfo:
        found = await client.workflows.get(execution)
        if found.requires_approval is None:
            raise CommandError(
                f"execution {execution} waits for no approval: it is {found.status}",
                next_step=f"holdfast workflow show {execution}",
            )
        token = found.requires_approval.resume_token
        return await client.workflows.approve(execution, token, approve=not deny, reason=reason)

    _print(ask(where, work), as_json=as_json)
    return Exit.OK


def cancel(
    execution: ExecutionArgument,
    reason: Annotated[str | None, Option("--reason", metavar="TEXT", help="Why, for the record.")] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Cancel an execution. What its current step has started goes on, and its result is ignored."""

    async def work(client: Client) -> ExecutionInfo:
        return await client.workflows.cancel(execution, reason=reason)

    _print(ask(where, work), as_json=as_json)


def _print(found: ExecutionInfo, *, as_json: bool) -> Exit:
    if as_json:
        shown = found.to_json()
        if shown["requiresApproval"] is not None:
            del shown["requiresApproval"]["resumeToken"]  # holdfast workflow approve gets it by itself
        write_json(shown)
        return Exit.FAILURE if found.status in ("failed", "cancelled") else Exit.OK
    write_field("execution", Cell(found.id, "bold"), Cell(f"  {found.name}", "dim"))
    write_field(
        "status", Cell(found.status, _STYLES.get(found.status, "")), Cell(f"  {visible(found.error or '')}", "dim")
    )
    rows: list[list[Cell | str]] = [
        [
            Cell(each.step_id, "bold"),
            each.type,
            Cell(each.status, _STYLES.get(each.status, "")),
            _line(each.error or each.output),
        ]
        for each in found.steps
    ]
    write_table(("step", "type", "status", "output"), rows)
    if found.requires_approval is not None:
        write_line(visible(found.requires_approval.prompt))
        note("next", hint(f"holdfast workflow approve {found.id}"))
    return Exit.FAILURE if found.status in ("failed", "cancelled") else Exit.OK


def _line(text: str) -> str:
    first = visible(text.strip().partition("\n")[0])
    return first if len(first) <= 70 else f"{first[:69]}…"
