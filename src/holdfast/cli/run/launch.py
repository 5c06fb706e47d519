"""`holdfast run`: runs a coding agent in a box, on a thread, followed live or detached."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from holdfast.cli.box.options import BoxOptions
from holdfast.cli.completion import complete_agent, complete_thread
from holdfast.cli.errors import CommandError, read_value
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.options import (
    BudgetOption,
    CheckpointsOption,
    ModelOption,
    TimeoutOption,
    TokenBudgetOption,
    make_budget,
    split_models,
)
from holdfast.cli.run.workspace.files import FilesOptions
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, note
from holdfast.cli.terminal.durations import parse_duration

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
    agent: Annotated[
        str | None,
        Option(
            "--agent",
            metavar="NAME",
            help="Agent: pi, codex, claude or opencode. Required, unless the environment names one.",
            autocompletion=complete_agent,
        ),
    ] = None,
    model: ModelOption = None,
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
    timeout: TimeoutOption = None,
    checkpoints: CheckpointsOption = None,
    environment: Annotated[
        str | None,
        Option(
            "--env", metavar="NAME[@VERSION]", help="Environment on the server. Default: holdfast.toml of the folder."
        ),
    ] = None,
    no_env: Annotated[bool, Option("--no-env", help="Ignore the holdfast.toml of the folder.")] = False,
    budget: BudgetOption = None,
    budget_tokens: TokenBudgetOption = None,
    delegate: Annotated[
        bool, Option("--delegate", help="Let the agent delegate tasks to other agents, in boxes like its own.")
    ] = False,
    *,
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
    from holdfast.cli.environment.place import explaining_consent
    from holdfast.cli.run.environment import choose_environment, environment_text, prepare_environment
    from holdfast.cli.run.follow import begin_and_follow
    from holdfast.cli.run.workspace.files import opened, send_files
    from holdfast.cli.run.workspace.repositories import clone_all, repositories_in
    from holdfast.cli.session import ensure_server, home_or_default

    text = _read_prompt(prompt)
    chosen = files.choose(Path.cwd(), Path.home(), continues=thread is not None)
    box_settings = box.to_json()
    seconds = read_value(parse_duration, timeout)
    home = home_or_default(where.home)
    with ExitStack() as clone:  # until it is uploaded
        local = clone.enter_context(opened(chosen, home, quiet=as_json))
        used = choose_environment(environment, chosen, local, without=no_env)
        if used.is_none and agent is None:
            raise CommandError(
                "the run has no agent",
                next_step='holdfast run "what to do" --agent NAME; holdfast agent list shows them',
                exit=Exit.USAGE,
            )
        first, fallbacks = split_models(model)
        most = make_budget(budget, budget_tokens)
        ensure_server(where)
        prepare_environment(where, used, agent=agent, model=first, box=box_settings, quiet=as_json)
        further = () if thread is not None and chosen is None else repositories_in(environment_text(where, used))

        async def work(client: Client) -> Exit:
            async def begin(state: LaunchState) -> StartedRun:
                from holdfast.cli.run.follow import StartedRun

                known = None if thread is None else await find_thread(client, thread)
                info = None if known is None else await client.threads.get(known)
                if chosen is not None or further:
                    # Checked before the upload, so that a missing model is reported at once, and before repositories
                    # are cloned, for which the user has to have allowed the file.
                    await client.runs.check(
                        agent=agent,
                        model=first,
                        thread=known,
                        box=box_settings,
                        fallbacks=fallbacks,
                        budget=most,
                        environment=used.name,
                        environment_file=used.file,
                        environment_place=used.place,
                    )
                if chosen is None and not (as_json or files.empty or thread is not None):
                    why = "empty: the current folder is not a project"
                    note("workspace", why, Cell("  choose a folder with --dir PATH, or none with --empty", "dim"))
                beside = await asyncio.to_thread(clone_all, further, home, clone, quiet=as_json)
                sent = await send_files(client, local, beside, quiet=as_json)
                clone.close()
                state.sent = True
                if (
                    info is not None
                    and info.run is not None
                    and sent is None
                    and not box_settings
                    and used.is_none
                    and not delegate
                ):
                    # With the settings of the earlier launch: with others, its box would be replaced.
                    launched = await client.runs.resume(
                        info.id,
                        text,
                        agent=agent,
                        model=first,
                        timeout=seconds,
                        checkpoints=checkpoints,
                        fallbacks=fallbacks,
                        budget=most,
                    )
                else:
                    launched = await client.runs.launch(
                        text,
                        agent=agent,
                        model=first,
                        thread=known,
                        title=title,
                        workspace=None if sent is None else sent.digest,
                        source=None if sent is None else sent.source,
                        box=box_settings,
                        timeout=seconds or None,
                        checkpoints=checkpoints,
                        environment=used.name,
                        environment_file=used.file,
                        environment_place=used.place,
                        repositories=[each.repository for each in beside],
                        fallbacks=fallbacks,
                        budget=most,
                        delegate=delegate,
                    )
                return StartedRun(launched.thread, launched.run, None if info is None else info.next_offset)

            return await begin_and_follow(where, client, begin, detach=detach, as_json=as_json)

        with explaining_consent(used.allow):
            return ask(where, work)


def _read_prompt(prompt: str) -> str:
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise CommandError("the prompt is empty", next_step='holdfast run "what to do" --agent NAME', exit=Exit.USAGE)
    return text
