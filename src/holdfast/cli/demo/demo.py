"""`holdfast demo`: a real agent repairs a small program, its box is killed half-way, and the work continues.

It needs no key: the model is a program that follows a script. Everything else is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from holdfast.cli.demo.sample import FILES, PROMPT, SCRIPT
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import HomeOption, JsonOption, Where
from holdfast.cli.session import ask, ensure_server, home_or_default
from holdfast.cli.terminal.console import (
    LABEL_WIDTH,
    Cell,
    hint,
    is_terminal,
    note,
    write_field,
    write_json,
    write_line,
)
from holdfast.cli.terminal.tool_lines import describe_call

if TYPE_CHECKING:
    from holdfast.cli.run.follow import Display
    from holdfast.cli.terminal.run_lines import RunLines, RunSeen
    from holdfast.client import Client, Entry

_AGENT: Final = "pi"
_MODEL: Final = "holdfast-demo"
_LOCK: Final = "demo.lock"
_MODEL_ID: Final = "scripted"
_MODEL_SECONDS: Final = 15.0
_KILL_DELAY: Final = 0.7
"""Seconds in which the agent is seen to work on before its box is killed."""
_PAUSE: Final = 0.05


def demo(home: HomeOption = None, as_json: JsonOption = False) -> Exit:
    """Watch a real agent work, lose its box half-way, and continue in another. Needs no key and no model.

    The agent is pi, in a box on this machine; its model follows a script. The first time, the agent is downloaded.
    """
    folder = home_or_default(home)
    with one_at_a_time(folder):
        return _run_demo(folder, as_json=as_json)


def _run_demo(folder: Path, *, as_json: bool) -> Exit:
    where = Where(None, None, folder)
    # Before the server starts, so that downloads are shown as such, and not as a slow run.
    asyncio.run(_set_up(folder))
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as scratch, _scripted_model(Path(scratch)) as model:
        ensure_server(where)

        async def work(client: Client) -> Exit:
            from holdfast.api.model.models import Api, Price

            await client.models.add(_MODEL, apis=[Api.OPENAI_CHAT], base_url=await model(), model=_MODEL_ID)
            await client.models.set_price(f"{_MODEL}/{_MODEL_ID}", Price(input=0, output=0))
            try:
                return await _play(where, client, Path(scratch), as_json=as_json)
            finally:
                await client.models.remove(_MODEL)

        return ask(where, work)


@contextlib.contextmanager
def one_at_a_time(home: Path) -> Iterator[None]:
    """Allow one demo in a home: all demos use the same model, and the first to end would remove it."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (home / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandError(
                f"a demo is already running in {home}",
                next_step="wait for it to end, or use another home: holdfast demo --home DIR",
                exit=Exit.CONFLICT,
            ) from None
        yield  # the kernel releases the lock of a demo that is killed


async def _set_up(home: Path) -> None:
    """Install the agent on this machine if it is missing, and print how long that took."""
    from holdfast.api.errors.agents import CannotInstall
    from holdfast.harnesses import registry
    from holdfast.harnesses.installation import Progress, Tools

    tools, harness = Tools(home), registry.find(_AGENT)
    if await asyncio.to_thread(tools.find, harness) is not None:
        return
    await asyncio.to_thread(home.mkdir, 0o700, True, True)
    done: dict[str, str] = {}
    with _moving_line() as draw:

        def show(progress: Progress) -> None:
            done[progress.what] = f"{progress.what} {progress.seconds:.1f} s"
            draw(" · ".join(done.values()) + ("" if progress.done else " …"))

        try:
            await tools.install(harness, on_progress=show)
        except CannotInstall as error:
            raise CommandError(error.message, next_step=error.hint) from None
    note("setting up", " · ".join(done.values()))


@contextlib.contextmanager
def _moving_line() -> Iterator[Callable[[str], None]]:
    """A line that is redrawn in place, on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        yield lambda text: live.update(Text(f"  {'setting up'.ljust(LABEL_WIDTH)}{text}", "dim"), refresh=True)


async def _play(where: Where, client: Client, folder: Path, *, as_json: bool) -> Exit:
    from holdfast.cli.run.follow import Following, interrupts, introduce, outcome, page_link, showing
    from holdfast.cli.run.workspace.files import send_folder
    from holdfast.cli.run.workspace.folder import Folder

    sample = folder / "prices"
    sample.mkdir()
    for name, text in FILES.items():
        (sample / name).write_text(text)
    with tempfile.SpooledTemporaryFile() as spool:
        digest = await send_folder(client, Folder(sample, repository=False), spool, quiet=True)
    async with interrupts() as caught:
        launched = await client.runs.launch(
            PROMPT, agent=_AGENT, model=_MODEL, workspace=digest, title="Demo: repair the discount"
        )
        thread = launched.thread
        if not as_json:
            await introduce(client, thread)
        with showing(as_json=as_json) as shown:
            shown.lines.expect(launched.run)
            shown.lines.footer = "Ctrl-C stops the demo"
            watched = _Watched(shown)
            killing = asyncio.create_task(_kill_and_resume(client, thread, watched))
            try:
                finished = await Following(where, thread, None, watched, caught).until_done()
            finally:
                killing.cancel()
                failure = (await asyncio.gather(killing, return_exceptions=True))[0]
        if isinstance(failure, Exception):
            raise failure
        if not finished:
            await client.runs.cancel(thread)
            note("stopped", f"the demo and its run; thread {thread} keeps what happened")
            return Exit.INTERRUPTED
        lines = shown.lines
        completed = lines.latest is not None and lines.latest.status == "completed"
        if as_json:
            write_json(outcome(thread, await page_link(client, thread), lines.latest))
        elif completed:  # a failed run has already been explained
            await _sum_up(client, thread, lines, watched)
        return Exit.OK if completed else Exit.FAILURE


class _Watched:
    """Shows the run, and notices the moment to kill its box: the agent has edited a file, and works on."""

    def __init__(self, shown: Display) -> None:
        self._shown = shown
        self.lines: RunLines = shown.lines
        self.edited = asyncio.Event()
        self.works_on = asyncio.Event()
        self.killed: RunSeen | None = None

    def take(self, entry: Entry, offset: str) -> None:
        self._shown.take(entry, offset)
        kind = entry.type.rpartition(".")[2]
        if kind == "tool" and describe_call(str(entry.payload.get("name")), entry.payload.get("arguments")).mark == "✎":
            self.edited.set()
        elif kind == "delta" and self.edited.is_set():
            self.works_on.set()

    def tick(self) -> None:
        self._shown.tick()

    def close(self) -> None:
        self._shown.close()


async def _kill_and_resume(client: Client, thread: str, watched: _Watched) -> None:
    await watched.works_on.wait()
    await asyncio.sleep(_KILL_DELAY)
    run = watched.lines.latest
    if run is None or run.status or not run.box:
        return
    watched.lines.on_purpose.add(run.box)
    watched.lines.expect()
    watched.killed = run
    await asyncio.to_thread(_kill_box, run.box)
    await client.runs.resume(thread, fresh=True)


def _kill_box(box: str) -> None:
    """Kill the first process of a box; the kernel then kills all others in it, as in a power cut."""
    monitors = {pid for pid in _pids() if _name_of(pid) == f"holdfast-box {box}"}
    victims = [pid for pid in _pids() if _parent_of(pid) in monitors]
    if not victims:
        raise CommandError(f"no process of box {box} was found on this machine", next_step="holdfast doctor")
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode("utf-8", "replace")
    return ""


def _parent_of(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


async def _sum_up(client: Client, thread: str, lines: RunLines, watched: _Watched) -> None:
    from holdfast.api.errors import Refused
    from holdfast.cli.run.changes.diff import patch_lines
    from holdfast.cli.run.follow import write_next

    try:
        changes = await client.runs.changes(thread)
    except Refused as error:  # for example, this machine has no git
        changes = None
        note("changes", str(error))
    write_line("")
    if watched.killed is not None and lines.latest is not None and lines.latest.session == "rebuilt":
        files = {"snapshot": "the files of the dead box", "kept": "the files of the dead box"}.get(lines.latest.files)
        kept = [f"{watched.killed.entries} entries on the thread", "the agent's session, rebuilt from them", files]
        write_field("kept", "; ".join(filter(None, kept)))
    for index, each in enumerate(() if changes is None else changes.files):
        write_field("changed" if index == 0 else "", each.path, Cell(f"  +{each.added} −{each.removed}", "dim"))
    if is_terminal() and changes is not None:
        write_line("")
        for line in patch_lines(changes.patch):
            write_line("    ", *line)
    write_line("")
    write_next(
        [
            f"holdfast diff {thread}",
            f"holdfast fork {thread}",
            f"holdfast attach {thread}",
            "holdfast model add --help",
        ]
    )
    write_line(hint('         then: holdfast run "what to do" --agent pi --dir ~/my-project'))


@contextlib.contextmanager
def _scripted_model(folder: Path) -> Iterator[Callable[[], Awaitable[str]]]:
    """Run a model that follows the script, on loopback. Yields a function that waits for its URL."""
    script, port_file = folder / "script.json", folder / "port"
    script.write_text(json.dumps(SCRIPT))
    # A process of its own: commands do not import what is shipped for tests.
    command = ["-m", "holdfast.testing.model", "--script", str(script), "--port-file", str(port_file)]
    with (folder / "model.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )

    async def url() -> str:
        deadline = time.monotonic() + _MODEL_SECONDS
        while not await asyncio.to_thread(port_file.exists):
            if process.poll() is not None or time.monotonic() > deadline:
                output = (await asyncio.to_thread((folder / "model.log").read_text)).strip()[-300:]
                raise CommandError(f"the scripted model does not start: {output or 'it printed nothing'}")
            await asyncio.sleep(_PAUSE)
        return f"http://127.0.0.1:{(await asyncio.to_thread(port_file.read_text)).strip()}/v1"

    try:
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_MODEL_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
