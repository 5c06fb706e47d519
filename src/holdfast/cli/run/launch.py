"""`holdfast run`: runs a coding agent in a box, on a thread, followed live or detached."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

from holdfast.cli.box.options import BoxOptions
from holdfast.cli.completion import complete_agent, complete_thread
from holdfast.cli.errors import CommandError, read_value
from holdfast.cli.exits import Exit
from holdfast.cli.names import find_thread
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.options import ModelOption, TimeoutOption
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, note
from holdfast.cli.terminal.durations import parse_duration
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.cli.run.follow import LaunchState, StartedRun
    from holdfast.cli.run.workspace import Folder
    from holdfast.client import Client

_PIECE: Final = 1 << 18
_IN_MEMORY: Final = 32 << 20


def run(
    prompt: Annotated[
        str,
        Argument(
            metavar="PROMPT", help="What the agent should do. - reads it from standard input.", show_default=False
        ),
    ],
    agent: Annotated[
        str,
        Option(
            "--agent",
            metavar="NAME",
            help="Agent: pi, codex, claude or opencode.",
            autocompletion=complete_agent,
        ),
    ],
    model: ModelOption = None,
    detach: Annotated[bool, Option("--detach", "-d", help="Leave it running, and print the thread's id.")] = False,
    directory: Annotated[
        Path | None,
        Option("--dir", metavar="PATH", help="Folder to work on. Default: the current git repository, or this folder."),
    ] = None,
    empty: Annotated[bool, Option("--empty", help="Start with no files.")] = False,
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
    delegate: Annotated[
        bool, Option("--delegate", help="Let the agent delegate tasks to other agents, in boxes like its own.")
    ] = False,
    *,
    box: BoxOptions,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Run a coding agent in a box, and follow it live. Exits with 0 only if the run completed.

    The box gets a copy of your files: the current git repository, or this folder, or --dir. It can reach only the
    model; --allow default lets it reach package registries, and --image gives it other programs.

    Ctrl-C leaves the run in progress and prints how to return. With --json, every line is an entry, and the last one
    has thread, run and status.

    \b
    holdfast run "fix the failing test" --agent pi --model anthropic
    holdfast run "pip install pytest, then fix the tests" --agent pi --allow default
    holdfast run "explain main.py" --agent codex --dir . --detach
    """
    from holdfast.cli.run.follow import begin_and_follow
    from holdfast.cli.run.workspace import choose_folder
    from holdfast.cli.session import ensure_server

    text = _read_prompt(prompt)
    if empty and directory is not None:
        raise CommandError("--empty and --dir exclude each other", next_step="give only one of them", exit=Exit.USAGE)
    continues = thread is not None and directory is None
    folder = None if empty or continues else choose_folder(directory, Path.cwd(), Path.home())
    box_settings = box.to_json()
    seconds = read_value(parse_duration, timeout)
    ensure_server(where)

    async def work(client: Client) -> Exit:
        async def begin(state: LaunchState) -> StartedRun:
            from holdfast.cli.run.follow import StartedRun

            known = None if thread is None else await find_thread(client, thread)
            info = None if known is None else await client.threads.get(known)
            if folder is not None:
                # Checked before the upload, so that a missing model is reported at once.
                await client.runs.check(agent=agent, model=model, thread=known, box=box_settings)
            workspace = await _prepare(client, folder, may_be_empty=empty or thread is not None, quiet=as_json)
            state.sent = True
            if info is not None and info.run is not None and workspace is None and not box_settings and not delegate:
                # With the settings of the earlier launch: with others, its box would be replaced.
                launched = await client.runs.resume(info.id, text, agent=agent, model=model, timeout=seconds)
            else:
                launched = await client.runs.launch(
                    text,
                    agent=agent,
                    model=model,
                    thread=known,
                    title=title,
                    workspace=workspace,
                    box=box_settings,
                    timeout=seconds or None,
                    delegate=delegate,
                )
            return StartedRun(launched.thread, launched.run, None if info is None else info.next_offset)

        return await begin_and_follow(where, client, begin, detach=detach, as_json=as_json)

    return ask(where, work)


def _read_prompt(prompt: str) -> str:
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise CommandError("the prompt is empty", next_step='holdfast run "what to do" --agent NAME', exit=Exit.USAGE)
    return text


async def _prepare(client: Client, folder: Folder | None, *, may_be_empty: bool, quiet: bool) -> str | None:
    """Upload the files of the workspace. Returns their digest."""
    if folder is None:
        if not may_be_empty and not quiet:
            why = "empty: the current folder is not a project"
            note("workspace", why, Cell("  choose a folder with --dir PATH, or none with --empty", "dim"))
        return None
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        return await send_folder(client, folder, spool, quiet=quiet)


async def send_folder(client: Client, folder: Folder, spool: IO[bytes], *, quiet: bool) -> str:
    """Pack a folder, upload it, and print what was uploaded."""
    from holdfast.cli.run.workspace import pack

    packed = await asyncio.to_thread(pack, folder, spool)
    if not quiet:
        kind = "git repository" if folder.repository else "folder"
        files = "1 file" if packed.files == 1 else f"{packed.files:,} files"
        if not folder.named:
            files += ": the whole folder, because it is not in a git repository"
        note("workspace", f"{kind} {folder.path}", Cell(f"  {files}, {describe_size(packed.size)}", "dim"))
        for what in packed.left_out:
            note("", Cell(f"without {what}", "dim"))
    spool.seek(0)

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(spool.read, _PIECE):
            yield piece

    return await client.runs.upload_tar(pieces())
