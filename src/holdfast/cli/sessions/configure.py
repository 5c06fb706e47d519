"""`holdfast session configure`: skills and tools of the agent of a session."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.errors import usage_error
from holdfast.cli.names import find_session
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option
from holdfast.cli.session import ask
from holdfast.cli.sessions.commands import SessionArgument
from holdfast.cli.terminal.console import write_field, write_json

if TYPE_CHECKING:
    from holdfast.api.session.sessions import AgentFile, AgentSettings
    from holdfast.client import Client


def configure(
    session: SessionArgument,
    skill: Annotated[
        list[Path] | None,
        Option("--skill", metavar="FILE", help="A skill: a folder with a SKILL.md, or NAME.md. Repeatable."),
    ] = None,
    custom_tool: Annotated[
        list[Path] | None,
        Option("--custom-tool", metavar="FILE", help="A tool for the agent's server: NAME.js or NAME.ts. Repeatable."),
    ] = None,
    without: Annotated[
        list[str] | None,
        Option("--without", metavar="TOOL", help="A tool that the agent may not use, such as webfetch. Repeatable."),
    ] = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Give the agent of a session skills and tools, in place of those that it was given before.

    It gets them between two prompts. An agent whose server was given up after crashes is started again.

    \b
    holdfast session configure t-3kd9 --skill skills/release --without webfetch
    """
    from holdfast.api.session.sessions import AgentSettings

    settings = AgentSettings(
        tools=dict.fromkeys(without or (), False),
        skills=_read([each / "SKILL.md" if each.is_dir() else each for each in skill or ()]),
        custom_tools=_read(custom_tool or ()),
    )

    async def work(client: Client) -> AgentSettings:
        return await client.sessions.configure(await find_session(client, session), settings)

    done = ask(where, work)
    if as_json:
        write_json(done.to_json())
    else:
        write_field("skills", ", ".join(each.name for each in done.skills) or "none")
        write_field("tools", ", ".join(each.name for each in done.custom_tools) or "none")


def _read(paths: Sequence[Path]) -> tuple[AgentFile, ...]:
    from holdfast.api.session.sessions import MOST_AGENT_FILES, AgentFile

    made = []
    for path in paths:
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(MOST_AGENT_FILES + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise usage_error(f"{path} cannot be read: {error}") from None
        name = path.resolve().parent.name if path.name == "SKILL.md" else path.stem
        made.append(AgentFile(name=name, text=text))
    return tuple(made)
