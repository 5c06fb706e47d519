"""`holdfast box exec`: a command in a box, connected to our standard streams."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from holdfast.cli.box.spec import parse_env
from holdfast.cli.errors import CommandError, read_value, usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.names import BoxArgument, open_box
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Option, OtherCommand
from holdfast.cli.session import ask, is_secure
from holdfast.cli.terminal.console import Cell, hint, is_terminal, write_field, write_json, write_line
from holdfast.cli.terminal.durations import parse_duration

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.box.box import RemoteBox

EnvOption = Annotated[
    list[str] | None,
    Option("--env", "-e", metavar="NAME[=VALUE]", help="Set a variable. NAME alone passes on your own value."),
]
CwdOption = Annotated[str | None, Option("--cwd", "-w", metavar="PATH", help="Folder to start in.")]
_EXITS: Final = {
    "command_not_found": Exit.NO_SUCH_COMMAND,
    "cannot_execute": Exit.CANNOT_EXECUTE,
    "exec_timeout": Exit.TIMED_OUT,
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run in a box."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None
    timeout: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"argv": list(self.argv), "env": dict(self.env), "cwd": self.cwd, "timeout": self.timeout}


def exec_(
    box: BoxArgument,
    command: Annotated[
        list[str], OtherCommand(metavar="COMMAND", help="The command and its arguments.", show_default=False)
    ],
    cwd: CwdOption = None,
    env: EnvOption = None,
    timeout: Annotated[
        str | None, Option(metavar="DURATION", help="Kill it after this time: 90s, 5m. Exits with 124.")
    ] = None,
    stdin: Annotated[
        bool | None,
        Option("--stdin/--no-stdin", "-i/-n", help="Pass on standard input. Default: unless it is a terminal."),
    ] = None,
    terminal: Annotated[bool, Option("--tty", "-t", help="Connect the command to your terminal.")] = False,
    detach: Annotated[bool, Option("--detach", "-d", help="Leave it running, and print its process id.")] = False,
    *,
    where: Where,
    as_json: JsonOption = False,
) -> int:
    """Run a command in a box. Prints its output and exits with its exit code; Ctrl-C kills it.

    Exits with 127 if the box has no such command, 126 if the command cannot be executed, 124 if it took too long, and
    125 if Holdfast failed. --json prints exit code and output as one document.

    \b
    holdfast box exec b-1 -- pytest -q
    cat dump.sql | holdfast box exec b-1 -- sqlite3 app.db
    holdfast box exec b-1 --detach -- python -m http.server
    """
    seconds = read_value(lambda text: float(parse_duration(text)), timeout)
    to_run = Command(tuple(command), parse_env(env or [], os.environ), cwd, seconds)
    if terminal and (detach or as_json or seconds is not None):
        raise usage_error("-t cannot be combined with --detach, --timeout or --json", "leave out -t")
    if detach and (stdin or seconds is not None):
        raise usage_error("--detach cannot be combined with --stdin or --timeout", "leave out --stdin and --timeout")
    with exec_exit_codes():
        if detach:
            _detach(where, box, to_run, as_json=as_json)
            return Exit.OK
        if terminal:
            from holdfast.cli.box.shell import TerminalRequest, run_in_terminal

            return run_in_terminal(TerminalRequest(where, box, to_run, survives=False))
        feed = stdin if stdin is not None else not sys.stdin.isatty()
        if not as_json and not is_secure(where):
            from holdfast.cli.box.relay import relay

            return relay(where, box, to_run.to_json(), sys.stdin.fileno() if feed else None)
        return _run_on_loop(where, box, to_run, feed=feed, as_json=as_json)


def _run_on_loop(where: Where, box: str, to_run: Command, *, feed: bool, as_json: bool) -> int:
    async def work(client: Client) -> int:
        async with await open_box(client, box) as handle:
            return await (_collect if as_json else _stream)(handle, to_run, feed=feed)

    import asyncio

    try:
        return ask(where, work)
    except asyncio.CancelledError:  # by a signal; the command is killed by now
        return 128 + signal.SIGTERM


async def _stream(box: RemoteBox, command: Command, *, feed: bool) -> int:
    """Run the command with our standard streams. It is killed if we end before it does."""
    from holdfast.cli.terminal.pipes import InputPipe, OutputPipe

    out, err = OutputPipe(1), OutputPipe(2)
    try:
        with _ended_by_signals():
            completed = await box.exec(
                command.argv,
                env=command.env,
                cwd=command.cwd,
                timeout=command.timeout,
                stdin=InputPipe(sys.stdin.fileno()) if feed else b"",
                on_stdout=out.write,
                on_stderr=err.write,
            )
    finally:  # print its output before any message of ours
        await out.flush()
        await err.flush()
    return completed.exit_code


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C, so that clean-up runs."""
    import asyncio

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
    from holdfast.cli.terminal.pipes import InputPipe

    stdin = b"".join([data async for data in InputPipe(sys.stdin.fileno())]) if feed else b""
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


@contextlib.contextmanager
def exec_exit_codes() -> Iterator[None]:
    """Exit with 124 to 127 for failures to run the command, as `docker exec` does, so that they differ from its own."""
    try:
        yield
    except CommandError as error:
        exit = _EXITS.get(error.code, Exit.NOT_RUN)
        raise CommandError(error.message, next_step=error.next_step, exit=exit, code=error.code) from error
