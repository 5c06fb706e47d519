"""`holdfast run`: a coding agent at work in a box, on a thread, followed live or left to itself."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Final

from holdfast.cli.completion import complete_agent, complete_thread
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.network_options import AllowOption, BandwidthOption, ConnectionsOption, NetworkName
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parameters import Argument, Option
from holdfast.cli.run.options import ModelOption, TimeoutOption, describe_box, read_timeout
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, note
from holdfast.cli.terminal.sizes import describe_size
from holdfast.cli.thread.names import find_thread

if TYPE_CHECKING:
    from holdfast.cli.run.follow import Asking, Begun
    from holdfast.cli.run.workspace import Folder
    from holdfast.client import Client

_PIECE: Final = 1 << 18
_IN_MEMORY: Final = 32 << 20


def run(
    prompt: Annotated[
        str, Argument(metavar="PROMPT", help="What to do; - reads it from standard input.", show_default=False)
    ],
    agent: Annotated[
        str,
        Option(
            "--agent",
            metavar="NAME",
            help="Who does it: pi, codex, claude, opencode.",
            autocompletion=complete_agent,
        ),
    ],
    model: ModelOption = None,
    detach: Annotated[bool, Option("--detach", "-d", help="Leave it running, and print the id of its thread.")] = False,
    directory: Annotated[
        Path | None,
        Option("--dir", metavar="PATH", help="Files to work on; else the git repository around you, or this folder."),
    ] = None,
    empty: Annotated[bool, Option("--empty", help="Begin with no files.")] = False,
    thread: Annotated[
        str | None,
        Option(
            metavar="ID", help="A thread to go on with, in its box; else a new one.", autocompletion=complete_thread
        ),
    ] = None,
    title: Annotated[str | None, Option(metavar="TEXT", help="Title of a new thread; else its prompt.")] = None,
    provider: Annotated[str | None, Option(metavar="NAME", help="What kind of box; else local.")] = None,
    image: Annotated[str | None, Option(metavar="IMAGE", help="Image to start from; else the provider's.")] = None,
    cpu: Annotated[float | None, Option(metavar="CORES", help="Cores, say 0.5 or 2.")] = None,
    memory: Annotated[str | None, Option(metavar="SIZE", help="Memory: 512M, 2G.")] = None,
    disk: Annotated[str | None, Option(metavar="SIZE", help="What it may have on disk: 10G.")] = None,
    pids: Annotated[int | None, Option(metavar="COUNT", help="Processes and threads at once.")] = None,
    network: Annotated[NetworkName | None, Option(help="What the box may reach beside the model; else none.")] = None,
    allow: AllowOption = None,
    bandwidth: BandwidthOption = None,
    connections: ConnectionsOption = None,
    timeout: TimeoutOption = None,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> Exit:
    """Let a coding agent do something, in a box, and follow it live. Exits with 0 only if it was completed.

    The box gets a copy of your files (the git repository around you, else this folder, or --dir), and no way out but to
    the model: --allow default lets it reach package registries, --image gives it other programs.

    Ctrl-C leaves the run going and says how to come back. With --json every line is an entry, and the last one has
    thread, run and status.

    \b
    holdfast run "fix the failing test" --agent pi --model anthropic
    holdfast run "pip install pytest, then fix the tests" --agent pi --allow default
    holdfast run "explain main.py" --agent codex --dir . --detach
    """
    from holdfast.cli.discovery import ensure_server
    from holdfast.cli.run.follow import begin_and_follow
    from holdfast.cli.run.workspace import choose_folder

    text = _read_prompt(prompt)
    if empty and directory is not None:
        raise CommandError(
            "--empty begins with no files, and --dir with some", next_step="give one of them", exit=Exit.USAGE
        )
    goes_on = thread is not None and directory is None
    folder = None if empty or goes_on else choose_folder(directory, Path.cwd(), Path.home())
    box = describe_box(
        provider=provider, image=image, cpu=cpu, memory=memory, disk=disk, pids=pids,
        network=network, allow=allow, bandwidth=bandwidth, connections=connections,
    )  # fmt: skip
    seconds = read_timeout(timeout)
    ensure_server(where)

    async def work(client: Client) -> Exit:
        async def begin(asking: Asking) -> Begun:
            from holdfast.cli.run.follow import Begun

            known = None if thread is None else await find_thread(client, thread)
            info = None if known is None else await client.threads.get(known)
            if folder is not None:
                # Before the files: who is refused for a model that is missing should not wait for them.
                await client.runs.check(agent=agent, model=model, thread=known, box=box)
            workspace = await _prepare(client, folder, said_empty=empty or thread is not None, quiet=as_json)
            asking.sent = True
            if info is not None and info.run is not None and workspace is None and not box:
                # As it was launched before: asked for otherwise, its box would be replaced.
                launched = await client.runs.resume(info.id, text, agent=agent, model=model, timeout=seconds)
            else:
                launched = await client.runs.launch(
                    text,
                    agent=agent,
                    model=model,
                    thread=known,
                    title=title,
                    workspace=workspace,
                    box=box,
                    timeout=seconds or None,
                )
            return Begun(launched.thread, launched.run, None if info is None else info.next_offset)

        return await begin_and_follow(where, client, begin, detach=detach, as_json=as_json)

    return ask(where, work)


def _read_prompt(prompt: str) -> str:
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text.strip():
        raise CommandError("the prompt is empty", next_step='holdfast run "what to do" --agent NAME', exit=Exit.USAGE)
    return text


async def _prepare(client: Client, folder: Folder | None, *, said_empty: bool, quiet: bool) -> str | None:
    """Send the files that the workspace begins with; says their digest."""
    if folder is None:
        if not said_empty and not quiet:
            why = "empty: this is not the folder of a project"
            note("workspace", why, Cell("  --dir PATH takes a folder, --empty is for none", "dim"))
        return None
    with tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY) as spool:
        return await send_folder(client, folder, spool, quiet=quiet)


async def send_folder(client: Client, folder: Folder, spool: IO[bytes], *, quiet: bool) -> str:
    """Pack a folder and send it, and say what went."""
    from holdfast.cli.run.workspace import pack

    packed = await asyncio.to_thread(pack, folder, spool)
    if not quiet:
        kind = "git repository" if folder.repository else "folder"
        files = "1 file" if packed.files == 1 else f"{packed.files:,} files"
        if not folder.named:
            files += ": all that is here, as there is no git repository"
        note("workspace", f"{kind} {folder.path}", Cell(f"  {files}, {describe_size(packed.size)}", "dim"))
        for what in packed.left_out:
            note("", Cell(f"without {what}", "dim"))
    spool.seek(0)

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(spool.read, _PIECE):
            yield piece

    return await client.runs.upload_tar(pieces())
