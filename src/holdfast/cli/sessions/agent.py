"""`holdfast session abort`, `command`, `review`, `revert`, `questions`, `answer` and `models`: what people tell the
agent of a session, and what it asks them.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_session
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.session import ask
from holdfast.cli.sessions.commands import SessionArgument
from holdfast.cli.terminal.console import hint, note, write_field, write_json, write_table
from holdfast.cli.terminal.durations import describe_duration

if TYPE_CHECKING:
    from holdfast.api.session.sessions import AgentModel, PromptInfo, QuestionInfo, ReviewInfo, SessionInfo
    from holdfast.client import Client


def abort(session: SessionArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """End the current work of the agent. Its prompt ends as cancelled, and the next one follows."""

    async def work(client: Client) -> tuple[bool, SessionInfo]:
        id = await find_session(client, session)
        was_at_work = (await client.sessions.get(id)).processing > 0
        return was_at_work, await client.sessions.abort(id)

    was_at_work, found = ask(where, work)
    if as_json:
        write_json(found.to_json())
    elif was_at_work:
        write_field("aborted", found.id)
    else:
        write_field("idle", f"{found.id} had no prompt at work, so there was nothing to abort")


def command(
    session: SessionArgument,
    name: Annotated[str, Argument(metavar="COMMAND", help="The name of the command, without the slash.")],
    args: Annotated[str, Argument(metavar="ARGS", help="What the command gets.")] = "",
    wait: Annotated[bool, Option("--wait", help="Wait for its end. Exits with 0 only if it completed.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Queue a slash command of the agent, such as one of the repository.

    \b
    holdfast session command t-3kd9 review main
    """

    async def work(client: Client) -> PromptInfo:
        id = await find_session(client, session)
        queued = await client.sessions.command(id, name.removeprefix("/"), args)
        return await client.sessions.wait_for_prompt(id, queued.id) if wait else queued

    queued = ask(where, work)
    if as_json:
        write_json(queued.to_json())
    else:
        write_field(queued.status, queued.id)
    return Exit.FAILURE if queued.status in ("failed", "cancelled") else Exit.OK


def review(
    session: SessionArgument,
    base: Annotated[
        str | None, Option("--base", metavar="REF", help="Review the changes since this commit or branch.")
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Have the agent review the changes in the workspace, and print what it found.

    \b
    holdfast session review t-3kd9 --base main
    """

    async def work(client: Client) -> ReviewInfo:
        id = await find_session(client, session)
        queued = await client.sessions.review(id, base)
        await client.sessions.wait_for_prompt(id, queued.id)
        return await client.sessions.review_of(id, queued.id)

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
        return
    write_field("summary", found.overall_summary)
    rows = [
        (each.severity, f"{each.file}:{each.line_start}", each.title)
        for file in sorted(found.files, key=lambda file: file.review_order)
        for each in file.findings
    ]
    if rows:
        write_table(("severity", "where", "finding"), rows)


def revert(
    session: SessionArgument,
    prompt: Annotated[str | None, Argument(metavar="PROMPT", help="Its id, from session status.")] = None,
    *,
    undo: Annotated[bool, Option("--undo", help="Undo the latest revert.")] = False,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Take a session back to where it was before a prompt: what was said, and the files of its box.

    Its thread keeps everything, and the files of now are saved: --undo brings both back.

    \b
    holdfast session revert t-3kd9 e-1k3
    holdfast session revert t-3kd9 --undo
    """
    if undo is (prompt is not None):
        raise CommandError(
            "name the prompt to go back to before, or --undo",
            next_step=f"holdfast session status {session}",
            exit=Exit.USAGE,
        )

    async def work(client: Client) -> SessionInfo:
        id = await find_session(client, session)
        return await (client.sessions.undo_revert(id) if prompt is None else client.sessions.revert(id, prompt))

    found = ask(where, work)
    if as_json:
        write_json(found.to_json())
        return
    write_field("undone" if undo else "reverted", found.id)
    if not undo:
        note("undo", hint(f"holdfast session revert {found.id} --undo"))


def questions(session: SessionArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """List the questions and permissions that the agent waits for."""

    async def work(client: Client) -> list[QuestionInfo]:
        return await client.sessions.questions(await find_session(client, session))

    found = ask(where, work)
    if as_json:
        write_json({"questions": [each.to_json() for each in found]})
    elif not found:
        write_field("no questions")
    else:
        now = time.time() * 1000
        rows = [
            (each.id, each.text, ", ".join(each.options), describe_duration(max(0.0, each.expires_at - now) / 1000))
            for each in found
        ]
        write_table(("question", "text", "options", "expires in"), rows)


def answer(
    session: SessionArgument,
    question: Annotated[str, Argument(metavar="QUESTION", help="Its id, from session questions.")],
    text: Annotated[str, Argument(metavar="ANSWER", help="For a permission: once, always or reject.")],
    *,
    where: Where,
) -> None:
    """Answer a question of the agent, or give it a permission.

    \b
    holdfast session answer t-3kd9 que_1 "use PostgreSQL"
    """

    async def work(client: Client) -> None:
        await client.sessions.answer(await find_session(client, session), question, text)

    ask(where, work)
    write_field("answered", question)


def models(session: SessionArgument, *, where: Where, as_json: JsonOption = False) -> None:
    """List the models that the agent's server knows, while it runs."""

    async def work(client: Client) -> list[AgentModel]:
        return await client.sessions.models(await find_session(client, session))

    found = ask(where, work)
    if as_json:
        write_json({"models": [each.to_json() for each in found]})
    else:
        write_table(("model", "provider", "name"), [(each.id, each.provider, each.name) for each in found])
