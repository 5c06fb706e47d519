"""`holdfast import`: puts a session of an agent on this machine onto a thread, to go on with it in a box."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.api.run.imports import EXPORTED_THREAD
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument, Option
from holdfast.cli.run.workspace.files import FilesOptions
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import Cell, hint, note, write_json, write_line

if TYPE_CHECKING:
    from holdfast.api.run.imports import Imported
    from holdfast.client import Client

AGENTS: Final = ("pi", "codex", "claude", "opencode", EXPORTED_THREAD)
_MOST_SEARCHED: Final = 500
_HEAD: Final = 64 * 1024


def import_(
    file: Annotated[
        Path | None,
        Argument(metavar="FILE", help="Session file, or exported thread. Default: the latest session of this folder."),
    ] = None,
    agent: Annotated[
        str | None,
        Option("--from", metavar="AGENT", help="Agent that wrote it: pi, codex, claude, opencode, or holdfast."),
    ] = None,
    title: Annotated[str | None, Option(metavar="TEXT", help="Title of the thread. Default: the first prompt.")] = None,
    *,
    files: FilesOptions,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Import a session of an agent on this machine, to go on with it in a box. Prints the thread's id.

    Without FILE, it takes the latest session that the agent had in this folder. The next run of the thread gets a copy
    of your files, as with holdfast run. A thread that holdfast export wrote, here or on another machine, goes on, too.

    \b
    holdfast import --from claude
    holdfast import session.jsonl
    holdfast import thread.jsonl
    opencode export SESSION > session.json && holdfast import session.json
    """
    from holdfast.cli.run.workspace.files import opened, send_files
    from holdfast.cli.session import ensure_server, home_or_default

    if agent is not None and agent not in AGENTS:
        raise CommandError(
            f"sessions of {agent!r} cannot be imported", next_step=f"--from {', '.join(AGENTS)}", exit=Exit.USAGE
        )
    path = file if file is not None else _latest(agent, Path.cwd(), Path.home(), os.environ)
    data = _read(path)
    wrote = agent or _agent_of(path, data)
    chosen = files.choose(Path.cwd(), Path.home(), continues=False)
    ensure_server(where)

    async def work(client: Client) -> Imported:
        sent = await send_files(client, local, quiet=as_json)
        return await client.runs.import_session(
            data.decode("utf-8", "replace"),
            agent=wrote,
            title=title,
            workspace=None if sent is None else sent.digest,
            source=None if sent is None else sent.source,
        )

    with opened(chosen, home_or_default(where.home), quiet=as_json) as local:
        made = ask(where, work)
    if as_json:
        write_json({**made.to_json(), "agent": wrote, "file": str(path)})
        return
    whose = "a thread" if wrote == EXPORTED_THREAD else wrote
    note("imported", f"{made.entries} entries of {whose}", Cell(f"  from {path}", "dim"))
    write_line(made.thread)
    note("next", hint(f'holdfast resume {made.thread} "what to do next"'))


def _read(path: Path) -> bytes:
    from holdfast.api.run.imports import MOST_UPLOADED

    try:
        with path.expanduser().open("rb") as opened:
            data = opened.read(MOST_UPLOADED + 1)
    except OSError as error:
        raise CommandError(
            f"cannot read {path}: {error.strerror}",
            next_step="give the file of a session; or the latest of this folder: holdfast import --from claude",
            exit=Exit.NOT_FOUND,
        ) from None
    if len(data) > MOST_UPLOADED:
        raise CommandError(
            f"{path} is larger than {MOST_UPLOADED >> 20} MB: too large to import",
            next_step="compact the session in its agent first",
        )
    return data


def _agent_of(path: Path, data: bytes) -> str:
    from holdfast.exports.thread_file import is_thread_file
    from holdfast.harnesses.imports import find_agent

    found = EXPORTED_THREAD if is_thread_file(data) else find_agent(data)
    if found is None:
        raise CommandError(
            f"{path} is not a session file of {', '.join(AGENTS[:-1])}, nor an exported thread",
            next_step="name the agent with --from",
            exit=Exit.USAGE,
        )
    return found


def _latest(agent: str | None, here: Path, home: Path, environment: Mapping[str, str]) -> Path:
    """Find the latest session of an agent in a folder."""
    if agent is None:
        raise CommandError("which session?", next_step="holdfast import FILE, or --from AGENT", exit=Exit.USAGE)
    if agent == EXPORTED_THREAD:
        raise CommandError("which exported thread?", next_step="holdfast import FILE", exit=Exit.USAGE)
    if agent == "opencode":
        raise CommandError(
            "OpenCode keeps its sessions in a database",
            next_step="opencode session list, then opencode export SESSION > FILE, then holdfast import FILE",
            exit=Exit.USAGE,
        )
    found = next(_sessions(agent, here, home, environment), None)
    if found is None:
        raise CommandError(
            f"{agent} has no session of {here} on this machine", next_step="holdfast import FILE", exit=Exit.NOT_FOUND
        )
    return found


def _sessions(agent: str, here: Path, home: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Yields the session files of a folder, newest first."""
    if agent == "pi":
        places = [home / ".pi" / "agent" / "sessions" / f"--{str(here).strip('/').replace('/', '-')}--"]
        pattern = "*.jsonl"
    elif agent == "claude":
        base = Path(environment.get("CLAUDE_CONFIG_DIR") or home / ".claude")
        name = "".join(each if each.isascii() and each.isalnum() else "-" for each in str(here))
        places, pattern = [base / "projects" / name], "*.jsonl"
    else:
        places, pattern = [Path(environment.get("CODEX_HOME") or home / ".codex") / "sessions"], "**/rollout-*.jsonl"
    files = [path for place in places for path in place.glob(pattern) if path.is_file()]
    files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in files[:_MOST_SEARCHED]:
        if agent != "codex" or _is_of(path, here):
            yield path


def _is_of(path: Path, here: Path) -> bool:
    """Returns whether a session of Codex was in this folder."""
    import json

    with path.open("rb") as file:
        line = file.readline(_HEAD)
    try:
        return bool(json.loads(line)["payload"]["cwd"] == str(here))
    except (ValueError, LookupError, TypeError):
        return False
