"""`holdfast box shell`: connects our terminal to a process in a box."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.box.exec import Command, CwdOption, EnvOption, exec_exit_codes
from holdfast.cli.box.spec import parse_env
from holdfast.cli.errors import CommandError, usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.names import BoxArgument, find_process, open_box
from holdfast.cli.options import Where
from holdfast.cli.parsing.parameters import Option, OtherCommand
from holdfast.cli.session import reach
from holdfast.cli.terminal.console import hint, note
from holdfast.cli.terminal.pipes import OutputPipe

if TYPE_CHECKING:
    from holdfast.boxes import Process
    from holdfast.cli.terminal.raw_mode import Signals, Terminal
    from holdfast.client.box.box import RemoteBox
    from holdfast.client.box.process import RemoteProcess

_PASSED_ON: Final = ("TERM", "COLORTERM")
_WAIT_FOR_SERVER: Final = 60.0
_REPLAYED: Final = 1 << 16
"""Bytes of earlier output that are shown again after `--attach`."""

_PAUSE: Final = 0.5
_LINE: Final = 4096
_PROMPT: Final = r"\u@\h:\w\$ "
"""User, box and folder. A prompt that the box itself sets wins."""


def shell(
    box: BoxArgument,
    command: Annotated[
        list[str] | None,
        OtherCommand(metavar="COMMAND", help="Command to run instead of a login shell.", show_default=False),
    ] = None,
    attach: Annotated[
        str | None, Option("--attach", metavar="PROCESS", help="Return to a shell that was left running.")
    ] = None,
    cwd: CwdOption = None,
    env: EnvOption = None,
    *,
    where: Where,
) -> int:
    """Open a terminal in a box: bash, or sh if the box has no bash. Exits with the shell's exit code.

    The shell belongs to the box: it outlives this command, your connection and the server. ~. at the start of a line
    leaves it running; --attach returns to it.

    \b
    holdfast box shell b-1
    holdfast box shell b-1 -- htop
    holdfast box shell b-1 --attach p-1
    """
    to_run = Command(tuple(command or ()), parse_env(env or [], os.environ), cwd)
    if attach is not None and (command or cwd or env):
        raise usage_error("--attach is for a process that is already running", "leave out the command, --cwd and --env")
    with exec_exit_codes():
        return run_in_terminal(TerminalRequest(where, box, to_run, attach=attach))


@dataclass(frozen=True, slots=True)
class TerminalRequest:
    """A process to connect the terminal to."""

    where: Where
    box: str
    command: Command
    """An empty argv means a login shell."""
    attach: str | None = None
    """The id of a process that is already running."""
    survives: bool = True
    """Whether the process keeps running when the user leaves."""


@dataclass(slots=True)
class _Progress:
    """What is needed to continue over another connection."""

    box: str = ""
    process: str | None = None
    offset: int = 0
    connected: bool = False
    """Whether there was a connection since the last message that there is none."""
    line: bytes = b""
    """The content of the cursor's line, usually a prompt."""
    on_line: bool = False
    """Whether the cursor is still on that line."""

    def shown(self, data: bytes) -> None:
        self.offset += len(data)
        self.line = (self.line + data).rpartition(b"\n")[2][-_LINE:]
        self.on_line = bool(self.line)

    def leave_line(self) -> None:
        """End the line, so that our messages do not follow a prompt."""
        if self.on_line:
            sys.stderr.write("\n")
        self.on_line = False

    def show_line(self, screen: int) -> None:
        os.write(screen, self.line)
        self.on_line = bool(self.line)


def run_in_terminal(request: TerminalRequest) -> int:
    """Connect our terminal to a process in a box until the process ends or the user leaves."""
    from holdfast.cli.terminal.raw_mode import Terminal

    if not Terminal.is_there():
        raise CommandError(
            "this command needs a terminal",
            next_step=f"without a terminal, use holdfast box exec {request.box} -- COMMAND",
            code="no_terminal",
        )
    progress = _Progress()
    try:
        return asyncio.run(_stay_connected(request, progress))
    except KeyboardInterrupt:
        _print_how_to_return(request, progress)
        return Exit.INTERRUPTED
    except CommandError as error:
        if error.exit is Exit.UNREACHABLE:
            _print_how_to_return(request, progress)
        raise


async def _stay_connected(request: TerminalRequest, progress: _Progress) -> int:
    """Connect, and reconnect as needed: the process survives loss of the server or the connection."""
    from holdfast.cli.terminal.raw_mode import Terminal, signals

    async with signals() as caught:
        with Terminal() as terminal:
            deadline: float | None = None
            while not caught.asked_to_end.is_set():
                try:
                    code = await _connect_once(request, progress, terminal, caught, back=deadline is not None)
                except CommandError as error:
                    if progress.process is None or error.exit is not Exit.UNREACHABLE:
                        raise
                    if deadline is None or progress.connected:
                        deadline = time.monotonic() + _WAIT_FOR_SERVER
                        progress.leave_line()
                        note("waiting", "the server does not answer; your process keeps running, Ctrl-C leaves it")
                    if time.monotonic() >= deadline:
                        raise
                    progress.connected = False
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(caught.asked_to_end.wait(), _PAUSE)
                else:
                    if code is not None:
                        return code
                    break
    _print_how_to_return(request, progress)
    return 128 + signal.SIGTERM if caught.asked_to_end.is_set() else Exit.OK


async def _connect_once(
    request: TerminalRequest, progress: _Progress, terminal: Terminal, caught: Signals, *, back: bool
) -> int | None:
    """Run over one connection. Returns the exit code, or None if the user left."""
    from holdfast.cli.terminal.raw_mode import Ending, exchange

    async with reach(request.where) as client, await open_box(client, progress.box or request.box) as box:
        process = await _process(request, progress, box, terminal)
        async with process.attach(progress.offset) as line:
            progress.connected = True
            if back:
                note("back", f"to process {process.id}")
                if not terminal.modes.full_screen:
                    progress.show_line(terminal.screen)
            ending = await exchange(terminal, line, caught, shown=progress.shown)
            if ending is Ending.ENDED:
                return line.exit_code
        if not request.survives:
            await process.kill()
        return None


async def _process(request: TerminalRequest, progress: _Progress, box: RemoteBox, terminal: Terminal) -> RemoteProcess:
    """The process to connect to: started now, started before, or given with `--attach`."""
    progress.box = box.id
    if progress.process is not None:
        return await box.process(progress.process)
    if request.attach is not None:
        process = await find_process(box, request.attach)
        if not process.pty:
            raise usage_error(
                f"process {process.id} has no terminal", f"holdfast box logs {box.id} {process.id} --follow"
            )
        await _show_again(process, progress, terminal)
    else:
        process = await _start(request, box, *terminal.size)
    progress.process = process.id
    return process


async def _start(request: TerminalRequest, box: RemoteBox, rows: int, columns: int) -> RemoteProcess:
    from holdfast.api.errors.boxes import CannotExecute

    passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    env = {"TERM": "xterm", **passed, **request.command.env}

    async def spawn(argv: Sequence[str], env: Mapping[str, str]) -> RemoteProcess:
        return await box.spawn(argv, env=env, cwd=request.command.cwd, pty=True, rows=rows, columns=columns)

    if request.command.argv:
        return await spawn(request.command.argv, env)
    try:
        return await spawn(("bash", "-l"), {"PS1": _PROMPT, **env})
    except CannotExecute:
        return await spawn(("sh", "-l"), env)


async def _show_again(process: RemoteProcess, progress: _Progress, terminal: Terminal) -> None:
    """Print roughly what was on the screen when the user left."""
    from holdfast.cli.terminal.raw_mode import without_questions

    progress.offset = max(0, await _length(process) - _REPLAYED)
    past = await process.read(offset=progress.offset, limit=2 * _REPLAYED)
    whole_lines = past.partition(b"\n")[2] if progress.offset else past
    progress.shown(past)
    terminal.modes.track(whole_lines)
    screen = OutputPipe(terminal.screen)
    await screen.write(without_questions(whole_lines))
    await screen.flush()


async def _length(process: Process) -> int:
    """The length of a process's output so far, found by a binary search with reads of single bytes."""
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


def _print_how_to_return(request: TerminalRequest, progress: _Progress) -> None:
    if progress.process is None or not request.survives:
        return
    with contextlib.suppress(OSError):  # the terminal may be closed
        progress.leave_line()
        note("left", f"process {progress.process} keeps running in {progress.box}")
        note("next", hint(f"holdfast box shell {progress.box} --attach {progress.process}"))
