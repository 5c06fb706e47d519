"""`holdfast session`: workspaces that people and agents share, with a queue of prompts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from holdfast.cli.box.options import BoxOptions
from holdfast.cli.completion import complete_thread
from holdfast.cli.errors import usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_session
from holdfast.cli.options import JsonOption, LimitOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.preparation import AgentOptions, no_agent, preparing
from holdfast.cli.run.workspace.files import FilesOptions
from holdfast.cli.session import ask
from holdfast.cli.terminal.confirmation import YesOption, confirm_end
from holdfast.cli.terminal.console import (
    Cell,
    hint,
    is_terminal,
    note,
    write_field,
    write_json,
    write_line,
    write_table,
)
from holdfast.cli.terminal.durations import describe_duration
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.api.session.sessions import PromptInfo, SessionInfo, SessionWork
    from holdfast.client import Client

SessionArgument = Annotated[
    str,
    Argument(
        metavar="SESSION",
        help="Id of the session, or the beginning of it.",
        show_default=False,
        autocompletion=complete_thread,
    ),
]
StateName = Literal[
    "initializing", "running", "hibernating", "hibernated", "restoring", "terminated", "error",
    "starting", "running_busy", "running_idle", "queued", "waking", "sleeping", "standby", "stopped",
]  # fmt: skip
"""The states of a session, then the words for them and their agent that lists show."""
ModeName = Literal["followup", "steer", "collect"]
_MOST_LISTED: Final = 10_000
_STYLES: Final = {"running": "green", "error": "red", "terminated": "dim", "hibernated": "dim"}
_PROMPT_STYLES: Final = {"completed": "green", "failed": "red", "cancelled": "yellow", "reverted": "dim"}


def new(
    *,
    options: AgentOptions,
    title: Annotated[str | None, Option(metavar="TEXT", help="Title of the session.")] = None,
    parent: Annotated[
        str | None,
        Option(metavar="SESSION", help="Belong to this session, and end with it.", autocompletion=complete_thread),
    ] = None,
    workstation: Annotated[
        bool | None,
        Option(
            "--workstation/--no-workstation",
            help="Start a desktop and an editor in its box. Default: if holdfast/workstation was built.",
        ),
    ] = None,
    context: Annotated[
        list[str] | None,
        Option("--context", metavar="FILE", help="A file for the agent to read first, such as a persona. Repeatable."),
    ] = None,
    tools: Annotated[
        str | None,
        Option(
            "--tools",
            metavar="GROUPS",
            help="What the agent may ask for, separated by commas, or all. holdfast session tools lists the groups.",
        ),
    ] = None,
    permissions: Annotated[
        str | None,
        Option(
            "--ask",
            metavar="WHAT",
            help="What the agent may do only if you permit it each time, separated by commas: bash,edit, or all.",
        ),
    ] = None,
    no_wait: Annotated[bool, Option("--no-wait", help="Do not wait until its box runs.")] = False,
    files: FilesOptions,
    box: BoxOptions,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Create a session: a box with your files, and an agent that works on the prompts you send to it.

    The files, the box and the environment are chosen as for holdfast run. The session sleeps while nothing works in
    it, and the next prompt wakes it as it was. --timeout and --budget are those of each prompt.

    \b
    holdfast session new --agent pi
    holdfast session new --agent claude --repo git@example.com:owner/name.git@main
    holdfast session new --env web --title "the web shop"
    holdfast session new --agent pi --workstation --context reviewer.md
    """
    from holdfast.cli.sessions.tools import split_groups, split_permissions

    told = {Path(each).name: _read_context(each) for each in context or ()}
    groups = split_groups(tools)
    asked = split_permissions(permissions)
    without_agent = no_agent("session", "holdfast session new")
    with preparing(options, files, box, where, without_agent=without_agent, quiet=as_json) as prepared:

        async def work(client: Client) -> SessionInfo:
            above = None if parent is None else await find_session(client, parent)
            await prepared.check(client)
            upload = await prepared.upload(client)
            made = await client.sessions.create(
                parent=above,
                title=title,
                workstation=workstation,
                context=told,
                tools=groups,
                ask=asked,
                **prepared.settings(upload),
            )
            return made if no_wait else await client.sessions.wait(made.id)

        made = ask(where, work)
    if as_json:
        write_json(made.to_json())
    elif is_terminal():
        _print(made)
        if made.error is None:
            note("next", hint(f'holdfast session prompt {made.id} "what to do"'))
    else:
        write_line(made.id)
    return Exit.OK if made.error is None else Exit.FAILURE


def list_(
    state: Annotated[StateName | None, Option("--state", help="Only sessions in this state.")] = None,
    limit: LimitOption = 50,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only their ids.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """List sessions, most recently active first. --state also takes the words that the list shows.

    \b
    holdfast session list --state running
    holdfast session list --state standby
    """

    async def work(client: Client) -> list[SessionInfo]:
        from holdfast.api.session.sessions import SessionState

        if state is None or state in set(SessionState):
            return [each async for each in client.sessions.list(states=() if state is None else (state,), limit=limit)]
        found: list[SessionInfo] = []
        async for each in client.sessions.list(limit=_MOST_LISTED):
            if each.joint_state == state and len(found) < limit:
                found.append(each)
        return found

    found = ask(where, work)
    if as_json:
        write_json({"sessions": [each.to_json() for each in found]})
    elif quiet:
        for each in found:
            write_line(each.id)
    elif not found:
        write_field("no sessions", hint("start one with holdfast session new --agent NAME"))
    else:
        now = time.time()
        write_table(("session", "state", "agent", "prompts", "active", "title"), [_row(each, now) for each in found])


def status(session: SessionArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """Show a session: its state, its box and its queue."""

    async def work(client: Client) -> tuple[SessionInfo, list[PromptInfo]]:
        id = await find_session(client, session)
        return await client.sessions.get(id), await client.sessions.prompts(id)

    found, prompts = ask(where, work)
    if as_json:
        write_json({**found.to_json(), "prompts": [each.to_json() for each in prompts]})
        return
    _print(found)
    if prompts:
        write_table(("prompt", "status", "mode", "run"), [_prompt_row(each) for each in prompts])


def prompt(
    session: SessionArgument,
    text: Annotated[str, Argument(metavar="PROMPT", help="What the agent should do. - reads it from standard input.")],
    mode: Annotated[
        ModeName, Option("--mode", help="After the current work, at once, or together with others that come soon.")
    ] = "followup",
    priority: Annotated[int, Option("--priority", metavar="N", help="Higher numbers come first.")] = 0,
    attach: Annotated[
        list[Path] | None,
        Option("--attach", metavar="FILE", help="A file or an image that belongs to it. Repeatable."),
    ] = None,
    channel: Annotated[
        str | None,
        Option("--channel", metavar="KEY", help="The conversation that it belongs to, such as web:reviews."),
    ] = None,
    wait: Annotated[bool, Option("--wait", help="Wait for its end. Exits with 0 only if it completed.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Queue a prompt to a session. A session that sleeps wakes up for it.

    \b
    holdfast session prompt t-3kd9 "run the tests"
    holdfast session prompt t-3kd9 "stop, and look at main.py first" --mode steer
    holdfast session prompt t-3kd9 "make it look like this" --attach sketch.png
    """
    import sys

    from holdfast.cli.sessions.attachments import read_attachments

    given = sys.stdin.read() if text == "-" else text
    attachments = read_attachments(attach or ())

    async def work(client: Client) -> tuple[str, PromptInfo]:
        id = await find_session(client, session)
        queued = await client.sessions.prompt(
            id, given, mode=mode, priority=priority, attachments=attachments, channel=channel
        )
        return id, await client.sessions.wait_for_prompt(id, queued.id) if wait else queued

    id, queued = ask(where, work)
    if as_json:
        write_json(queued.to_json())
    else:
        write_field(queued.status, queued.id)
        note("next", hint(f"holdfast attach {id}"))
    return Exit.FAILURE if queued.status in ("failed", "cancelled") else Exit.OK


def hibernate(session: SessionArgument, *, where: Where, as_json: JsonOption = False) -> Exit:
    """Save the files of a session, and free everything else. Programs in its box are ended."""

    async def work(client: Client) -> SessionInfo:
        return await client.sessions.hibernate(await find_session(client, session))

    return _print_change(ask(where, work), wanted="hibernated", as_json=as_json)


def restore(session: SessionArgument, *, where: Where, as_json: JsonOption = False) -> Exit:
    """Wake a session, with its files as they were and fresh secrets."""

    async def work(client: Client) -> SessionInfo:
        id = await find_session(client, session)
        await client.sessions.restore(id)
        return await client.sessions.wait(id)

    return _print_change(ask(where, work), wanted="running", as_json=as_json)


def terminate(session: SessionArgument, yes: YesOption = False, *, where: Where, as_json: JsonOption = False) -> Exit:
    """Terminate a session, and the sessions and tasks below it. Its thread and its files stay."""
    id = _confirmed("terminate", "session {id}", session, where, yes=yes)

    async def work(client: Client) -> SessionInfo:
        return await client.sessions.terminate(id)

    return _print_change(ask(where, work), wanted="terminated", as_json=as_json)


def delete(session: SessionArgument, yes: YesOption = False, *, where: Where, as_json: JsonOption = False) -> None:
    """Delete the files of a terminated session: its box and its snapshots. Its thread stays."""
    id = _confirmed("delete", "the files of session {id}", session, where, yes=yes)

    async def work(client: Client) -> int:
        return await client.sessions.delete_workspace(id)

    freed = ask(where, work)
    if as_json:
        write_json({"id": id, "freed": freed})
    else:
        write_field("deleted", f"the files of {id}", Cell(f"  {describe_size(freed)} freed", "dim"))


def _confirmed(verb: str, what: str, session: str, where: Where, *, yes: bool) -> str:
    """Ask whether to end a session or its files. Returns its id."""

    async def work(client: Client) -> str:
        return await find_session(client, session)

    id = ask(where, work)
    confirm_end(verb, what.format(id=id), f"holdfast session {verb} {id}", yes=yes)
    return id


def _read_context(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise usage_error(f"the context file {path} cannot be read: {error}") from None


def _print_change(found: SessionInfo, *, wanted: str, as_json: bool) -> Exit:
    if as_json:
        write_json(found.to_json())
    else:
        _print(found)
    return Exit.OK if found.state == wanted else Exit.FAILURE


def _print(found: SessionInfo) -> None:
    write_field("session", Cell(found.id, "bold"), Cell(f"  {found.title or ''}", "dim"))
    why = "" if found.why is None else f"  {found.why}"
    write_field("state", Cell(found.state, _STYLES.get(found.state, "")), Cell(why, "dim"))
    write_field("agent", f"{found.agent}, {found.model}", Cell(f"  {found.agent_state}", "dim"))
    write_field("box", found.box or "none", Cell(f"  {found.provider}", "dim"))
    write_field("prompts", f"{found.queued} waiting, {found.processing} at work, {found.ended} ended")
    if found.work is not None:
        write_field("work", _describe_work(found.work))
    if found.error is not None:
        write_field("error", Cell(found.error.message, "red"))
        if found.error.hint is not None:
            note("next", hint(found.error.hint))


def _describe_work(work: SessionWork) -> str:
    """Such as `branch fix, 1 commit, 2 files changed, +10 -3`."""
    number = f"{len(work.files)}{'+' if work.more else ''}"
    files = f"{number} file{'' if number == '1' else 's'} changed"
    added, removed = (sum(getattr(each, name) or 0 for each in work.files) for name in ("additions", "deletions"))
    commits = f"{work.commits} commit{'s' if work.commits != 1 else ''}"
    where = f"branch {work.branch}" if work.branch else "no branch"
    return f"{where}, {commits}, {files}, +{added} -{removed}"


def _row(found: SessionInfo, now: float) -> list[Cell | str]:
    return [
        Cell(found.id, "bold"),
        Cell(found.joint_state, _STYLES.get(found.state, "")),
        found.agent,
        f"{found.queued + found.processing} open, {found.ended} ended",
        f"{describe_duration(max(0.0, now - found.last_activity_at / 1000))} ago",
        found.title or "",
    ]


def _prompt_row(each: PromptInfo) -> list[Cell | str]:
    return [Cell(each.id, "bold"), Cell(each.status, _PROMPT_STYLES.get(each.status, "")), each.mode, each.run or ""]
