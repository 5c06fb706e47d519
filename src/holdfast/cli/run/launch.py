"""`holdfast run`: runs a coding agent in a box, on a thread, followed live or detached."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.box.options import BoxOptions
from holdfast.cli.completion import complete_thread
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.preparation import AgentOptions, no_agent, preparing
from holdfast.cli.run.workspace.files import FilesOptions
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, note

if TYPE_CHECKING:
    from holdfast.cli.run.follow import LaunchState, StartedRun
    from holdfast.client import Client


def run(
    prompt: Annotated[
        str,
        Argument(
            metavar="PROMPT", help="What the agent should do. - reads it from standard input.", show_default=False
        ),
    ],
    *,
    options: AgentOptions,
    detach: Annotated[bool, Option("--detach", "-d", help="Leave it running, and print the thread's id.")] = False,
    thread: Annotated[
        str | None,
        Option(
            metavar="ID",
            help="Continue this thread, in its box. Default: a new thread.",
            autocompletion=complete_thread,
        ),
    ] = None,
    title: Annotated[str | None, Option(metavar="TEXT", help="Title of a new thread. Default: the prompt.")] = None,
    files: FilesOptions,
    box: BoxOptions,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Run a coding agent in a box, and follow it live. Exits with 0 only if the run completed.

    The box gets a copy of your files: the current git repository, or this folder, or --dir, or a clean clone with
    --repo. It can reach only the model; --allow default lets it reach package registries, and --image gives it other
    programs. An environment (--env, or a holdfast.toml in the folder) says all of this once; options take precedence.

    Ctrl-C leaves the run in progress and prints how to return. With --json, every line is an entry, and the last one
    has thread, run and status.

    \b
    holdfast run "fix the failing test" --agent pi --model anthropic
    holdfast run "pip install pytest, then fix the tests" --agent pi --allow default
    holdfast run "fix the tests" --agent pi --model anthropic,openai --budget 5
    holdfast run "explain main.py" --agent codex --dir . --detach
    holdfast run "write a changelog" --agent pi --repo git@example.com:owner/name.git@main
    holdfast run "fix the failing test" --env web
    """
    from holdfast.cli.run.follow import begin_and_follow

    text = _read_prompt(prompt)
    without_agent = no_agent("run", 'holdfast run "what to do"')
    continues = thread is not None
    with preparing(
        options, files, box, where, without_agent=without_agent, continues=continues, quiet=as_json
    ) as prepared:

        async def begin(client: Client, state: LaunchState) -> StartedRun:
            from holdfast.cli.run.follow import StartedRun

            known = None if thread is None else await find_thread(client, thread)
            info = None if known is None else await client.threads.get(known)
            if prepared.chosen is not None or prepared.further:
                await prepared.check(client, thread=known)
            if prepared.chosen is None and not (as_json or files.empty or continues):
                why = "empty: the current folder is not a project"
                note("workspace", why, Cell("  choose a folder with --dir PATH, or none with --empty", "dim"))
            upload = await prepared.upload(client)
            state.sent = True
            is_plain = upload.files is None and prepared.is_plain
            if info is not None and info.run is not None and is_plain:
                # With the settings of the earlier launch: with others, its box would be replaced.
                launched = await client.runs.resume(
                    info.id,
                    text,
                    agent=prepared.agent,
                    model=prepared.model,
                    timeout=prepared.seconds,
                    checkpoints=prepared.checkpoints,
                    fallbacks=prepared.fallbacks,
                    budget=prepared.budget,
                )
            else:
                launched = await client.runs.launch(text, thread=known, title=title, **prepared.settings(upload))
            return StartedRun(launched.thread, launched.run, None if info is None else info.next_offset)

        async def work(client: Client) -> Exit:
            return await begin_and_follow(
                where, client, lambda state: begin(client, state), detach=detach, as_json=as_json
            )

        return ask(where, work)


def _read_prompt(prompt: str) -> str:
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise CommandError("the prompt is empty", next_step='holdfast run "what to do" --agent NAME', exit=Exit.USAGE)
    return text
