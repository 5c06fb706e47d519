"""`holdfast box exec` and `holdfast box shell`: commands in a box, with our standard streams or our terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from holdfast.cli.box.spec import parse_env, read_value, wrong
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import ApiKeyOption, HomeOption, JsonOption, ServerOption
from holdfast.cli.session import BoxArgument, Where, ask, find_process, open_box, reach
from holdfast.cli.terminal.console import Cell, hint, is_terminal, note, write_field, write_json, write_line
from holdfast.cli.terminal.durations import parse_duration
from holdfast.cli.terminal.pipes import Inlet, Outlet

if TYPE_CHECKING:
    from holdfast.boxes import Process
    from holdfast.cli.terminal.raw_mode import Happened, Terminal
    from holdfast.client import Client
    from holdfast.client.box.box import RemoteBox
    from holdfast.client.box.process import RemoteProcess

_PASSED_ON: Final = ("TERM", "COLORTERM")
_WAIT_FOR_SERVER: Final = 60.0
_REPLAYED: Final = 1 << 16
"""Bytes of what was printed before that a returning caller sees again."""

_PAUSE: Final = 0.5
_LINE: Final = 4096
_PROMPT: Final = r"\u@\h:\w\$ "
"""Who, in which box, where. What the box itself sets wins."""

EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME[=VALUE]", help="A variable; NAME alone takes your own value."),
]
CwdOption = Annotated[str | None, typer.Option("--cwd", "-w", metavar="PATH", help="Folder to begin in.")]


@dataclass(frozen=True, slots=True)
class Command:
    """What is to run in the box."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    timeout: float | None = None


def exec_(
    box: BoxArgument,
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments.", show_default=False)
    ],
    cwd: CwdOption = None,
    env: EnvOption = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Kill it after so long: 90s, 5m. Exits with 124.")
    ] = None,
    stdin: Annotated[
        bool | None,
        typer.Option("--stdin/--no-stdin", "-i/-n", help="Pass on standard input; else where it is no terminal."),
    ] = None,
    terminal: Annotated[bool, typer.Option("--tty", "-t", help="Give it a terminal: yours.")] = False,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Leave it running, and print the id of its process.")
    ] = False,
    server: ServerOption = None,
    api_key: ApiKeyOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> int:
    """Run a command in a box. Its output and exit code are yours; Ctrl-C kills it.

    Exits with 127 where the box has no such command, 126 where it cannot be run, 124 where it took too long, and 125
    where it is us who failed. --json prints exit code and output as one document.

    \b
    holdfast box exec b-1 -- pytest -q
    cat dump.sql | holdfast box exec b-1 -- sqlite3 app.db
    holdfast box exec b-1 --detach -- python -m http.server
    """
    seconds = None if timeout is None else float(read_value(parse_duration, timeout))
    asked = Command(tuple(command), parse_env(env or [], os.environ), cwd, seconds)
    where = Where(server, api_key, home)
    if terminal and (detach or as_json or seconds is not None):
        raise wrong("a command with a terminal (-t) is not detached, timed or told as JSON", "leave out -t")
    if detach and (stdin or seconds is not None):
        raise wrong("a detached command has neither standard input nor a time limit", "leave out --stdin and --timeout")
    with failing_as_not_run(command[0]):
        if detach:
            _detach(where, box, asked, as_json=as_json)
            return Exit.OK
        if terminal:
            return _lend(Visit(where, box, asked, survives=False))
        feed = stdin if stdin is not None else not sys.stdin.isatty()

        async def work(client: Client) -> int:
            async with await open_box(client, box) as handle:
                return await (_collect if as_json else _stream)(handle, asked, feed=feed)

        try:
            return ask(where, work)
        except asyncio.CancelledError:  # asked to end: the command is killed by now
            return 128 + signal.SIGTERM


async def _stream(box: RemoteBox, command: Command, *, feed: bool) -> int:
    """Run it with our standard streams. It is killed when we end before it does."""
    out, err = Outlet(1), Outlet(2)
    try:
        with _ended_by_signals():
            completed = await box.exec(
                command.argv,
                env=command.env,
                cwd=command.cwd,
                timeout=command.timeout,
                stdin=Inlet(sys.stdin.fileno()) if feed else b"",
                on_stdout=out.write,
                on_stderr=err.write,
            )
    finally:  # what it printed until then comes before what we have to say
        await out.flush()
        await err.flush()
    return completed.exit_code


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ends as by Ctrl-C when asked to end in another way, so that what has to be undone is."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


async def _collect(box: RemoteBox, command: Command, *, feed: bool) -> int:
    stdin = b"".join([data async for data in Inlet(sys.stdin.fileno())]) if feed else b""
    done = await box.exec(command.argv, env=command.env, cwd=command.cwd, timeout=command.timeout, stdin=stdin)
    write_json(
        {
            "exitCode": done.exit_code,
            "stdout": done.stdout.decode("utf-8", "replace"),
            "stderr": done.stderr.decode("utf-8", "replace"),
        }
    )
    return done.exit_code


def _detach(where: Where, box: str, command: Command, *, as_json: bool) -> None:
    async def work(client: Client) -> tuple[str, str]:
        async with await open_box(client, box) as handle:
            return handle.id, (await handle.spawn(command.argv, env=command.env, cwd=command.cwd)).id

    id, process = ask(where, work)
    if as_json:
        write_json({"box": id, "process": process})
    elif is_terminal():
        write_field("process", Cell(process, "bold"))
        write_field("next", hint(f"holdfast box logs {id} {process} --follow"))
    else:
        write_line(process)


def shell(
    box: BoxArgument,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Instead of a login shell.", show_default=False),
    ] = None,
    attach: Annotated[
        str | None, typer.Option("--attach", metavar="PROCESS", help="Come back to a shell that was left.")
    ] = None,
    cwd: CwdOption = None,
    env: EnvOption = None,
    server: ServerOption = None,
    api_key: ApiKeyOption = None,
    home: HomeOption = None,
) -> int:
    """Open a terminal in a box: bash, or sh where there is none. Its exit code is yours.

    The shell is the box's, not yours: it outlives this command, your connection and the server. ~. at the beginning
    of a line leaves it running; --attach comes back.

    \b
    holdfast box shell b-1
    holdfast box shell b-1 -- htop
    holdfast box shell b-1 --attach p-1
    """
    asked = Command(tuple(command or ()), parse_env(env or [], os.environ), cwd)
    if attach is not None and (command or cwd or env):
        raise wrong("--attach goes to a process that runs already", "leave out the command, --cwd and --env")
    with failing_as_not_run(command[0] if command else "sh"):
        return _lend(Visit(Where(server, api_key, home), box, asked, attach=attach))


@contextlib.contextmanager
def failing_as_not_run(program: str) -> Iterator[None]:
    """Our own failures, told apart from the exit codes of commands, as everybody's tools do it."""
    try:
        yield
    except CommandError as error:
        exit = Exit.NOT_RUN
        if error.code == "cannot_execute":
            # It is the program that is missing, not the folder to start in.
            missing = error.message.startswith(program) and "no such" in error.message
            exit = Exit.NO_SUCH_COMMAND if missing else Exit.CANNOT_EXECUTE
        elif error.code == "exec_timeout":
            exit = Exit.TIMED_OUT
        raise CommandError(error.message, next_step=error.next_step, exit=exit, code=error.code) from error


@dataclass(frozen=True, slots=True)
class Visit:
    """What a terminal is lent for."""

    where: Where
    box: str
    command: Command
    """Without argv for a login shell."""
    attach: str | None = None
    """A process that runs already."""
    survives: bool = True
    """Whether the process goes on when the caller leaves."""


@dataclass(slots=True)
class _Progress:
    """How far a visit has come: enough to go on with it over another connection."""

    box: str = ""
    process: str | None = None
    offset: int = 0
    moved: bool = False
    """Whether there was a connection since we last said that there is none."""
    line: bytes = b""
    """What is on the line that the cursor is on: a prompt, most of the time."""
    on_line: bool = False
    """Whether the cursor is on it still."""

    def shown(self, data: bytes) -> None:
        self.offset += len(data)
        self.line = (self.line + data).rpartition(b"\n")[2][-_LINE:]
        self.on_line = bool(self.line)

    def leave_line(self) -> None:
        """So that what we have to say is not said behind a prompt."""
        if self.on_line:
            sys.stderr.write("\n")
        self.on_line = False

    def show_line(self, screen: int) -> None:
        os.write(screen, self.line)
        self.on_line = bool(self.line)


def _lend(visit: Visit) -> int:
    """Lend our terminal to a process in a box until it ends or the caller leaves."""
    from holdfast.cli.terminal.raw_mode import Terminal

    if not Terminal.is_there():
        raise CommandError(
            "there is no terminal here to work in",
            next_step=f"holdfast box exec {visit.box} -- COMMAND runs a command without one",
            code="no_terminal",
        )
    progress = _Progress()
    try:
        return asyncio.run(_visit(visit, progress))
    except KeyboardInterrupt:
        _say_how_to_return(visit, progress)
        return Exit.INTERRUPTED
    except CommandError as error:
        if error.exit is Exit.UNREACHABLE:
            _say_how_to_return(visit, progress)
        raise


async def _visit(visit: Visit, progress: _Progress) -> int:
    """Connect, and connect again: the process does not mind that the server, or the way to it, went away."""
    from holdfast.cli.terminal.raw_mode import Terminal, signals

    async with signals() as happened:
        with Terminal() as terminal:
            given_up_at: float | None = None
            while not happened.asked_to_end.is_set():
                try:
                    code = await _converse(visit, progress, terminal, happened, back=given_up_at is not None)
                except CommandError as error:
                    if progress.process is None or error.exit is not Exit.UNREACHABLE:
                        raise
                    if given_up_at is None or progress.moved:
                        given_up_at = time.monotonic() + _WAIT_FOR_SERVER
                        progress.leave_line()
                        note("waiting", "the server is away; your process goes on, Ctrl-C leaves it")
                    if time.monotonic() >= given_up_at:
                        raise
                    progress.moved = False
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(happened.asked_to_end.wait(), _PAUSE)
                else:
                    if code is not None:
                        return code
                    break
    _say_how_to_return(visit, progress)
    return 128 + signal.SIGTERM if happened.asked_to_end.is_set() else Exit.OK


async def _converse(
    visit: Visit, progress: _Progress, terminal: Terminal, happened: Happened, *, back: bool
) -> int | None:
    """One connection's worth of conversation: the exit code, or None where the caller left."""
    from holdfast.cli.terminal.raw_mode import Ending, converse

    async with reach(visit.where) as client, await open_box(client, progress.box or visit.box) as box:
        process = await _process(visit, progress, box, terminal)
        async with process.attach(progress.offset) as line:
            progress.moved = True
            if back:
                note("back", f"at process {process.id}")
                if not terminal.modes.full_screen:
                    progress.show_line(terminal.screen)
            ending = await converse(terminal, line, happened, shown=progress.shown)
            if ending is Ending.ENDED:
                return line.exit_code
        if not visit.survives:
            await process.kill()
        return None


async def _process(visit: Visit, progress: _Progress, box: RemoteBox, terminal: Terminal) -> RemoteProcess:
    """The process of this visit: the one that it began, or came back to."""
    progress.box = box.id
    if progress.process is not None:
        return await box.process(progress.process)
    if visit.attach is not None:
        process = await find_process(box, visit.attach)
        if not process.pty:
            raise wrong(
                f"process {process.id} has no terminal", f"holdfast box logs {box.id} {process.id} --follow shows it"
            )
        await _show_again(process, progress, terminal)
    else:
        process = await _begin(visit, box, *terminal.size)
    progress.process = process.id
    return process


async def _begin(visit: Visit, box: RemoteBox, rows: int, columns: int) -> RemoteProcess:
    from holdfast.boxes.errors import CannotExecute

    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    env = {"TERM": "xterm", **passed, **visit.command.env}

    async def spawn(argv: Sequence[str], env: Mapping[str, str]) -> RemoteProcess:
        return await box.spawn(argv, env=env, cwd=visit.command.cwd, pty=True, rows=rows, columns=columns)

    if visit.command.argv:
        return await spawn(visit.command.argv, env)
    try:
        return await spawn(("bash", "-l"), {"PS1": _PROMPT, **env})
    except CannotExecute:
        return await spawn(("sh", "-l"), env)


async def _show_again(process: RemoteProcess, progress: _Progress, terminal: Terminal) -> None:
    """What was on the screen when the caller left, or about that."""
    from holdfast.cli.terminal.raw_mode import without_questions

    progress.offset = max(0, await _length(process) - _REPLAYED)
    past = await process.read(offset=progress.offset, limit=2 * _REPLAYED)
    whole_lines = past.partition(b"\n")[2] if progress.offset else past
    progress.shown(past)
    terminal.modes.see(whole_lines)
    screen = Outlet(terminal.screen)
    await screen.write(without_questions(whole_lines))
    await screen.flush()


async def _length(process: Process) -> int:
    """How much a process has printed so far, found by asking for single bytes."""
    least, beyond = 0, 1
    while await process.read(offset=beyond, limit=1):
        least, beyond = beyond, beyond * 16
    while beyond - least > 1:
        middle = (least + beyond) // 2
        if await process.read(offset=middle, limit=1):
            least = middle
        else:
            beyond = middle
    return beyond


def _say_how_to_return(visit: Visit, progress: _Progress) -> None:
    if progress.process is None or not visit.survives:
        return
    with contextlib.suppress(OSError):  # a terminal that was closed cannot be told
        progress.leave_line()
        note("left", f"process {progress.process} goes on in {progress.box}")
        note("next", hint(f"holdfast box shell {progress.box} --attach {progress.process}"))
