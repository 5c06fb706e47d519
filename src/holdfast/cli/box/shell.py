"""`holdfast box shell`: a terminal in a box, which is ours for as long as we stay."""

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

from holdfast.cli.box.exec import Command, CwdOption, EnvOption, failing_as_not_run
from holdfast.cli.box.spec import parse_env, wrong
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import Where
from holdfast.cli.parameters import Option, OtherCommand
from holdfast.cli.session import BoxArgument, find_process, open_box, reach
from holdfast.cli.terminal.console import hint, note
from holdfast.cli.terminal.pipes import Outlet

if TYPE_CHECKING:
    from holdfast.boxes import Process
    from holdfast.cli.terminal.raw_mode import Happened, Terminal
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


def shell(
    box: BoxArgument,
    command: Annotated[
        list[str] | None,
        OtherCommand(metavar="COMMAND", help="Instead of a login shell.", show_default=False),
    ] = None,
    attach: Annotated[
        str | None, Option("--attach", metavar="PROCESS", help="Come back to a shell that was left.")
    ] = None,
    cwd: CwdOption = None,
    env: EnvOption = None,
    *,
    where: Where,
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
        return lend(Visit(where, box, asked, attach=attach))


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


def lend(visit: Visit) -> int:
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
    from holdfast.api.errors.boxes import CannotExecute

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
