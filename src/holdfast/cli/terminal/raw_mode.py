"""Connects the user's terminal, in raw mode, to a process in a box, and always restores it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Final, Protocol, Self

from holdfast.cli.terminal.pipes import OutputPipe

_PIECE: Final = 1 << 16
_MODE: Final = re.compile(rb"\x1b\[\?([0-9;]{1,32})([hl])")
_QUESTIONS: Final = re.compile(
    rb"\x1b\[[?>=]?[0-9;]*(?:n|c|u|\$p|t)|\x1b\[[>=]?[0-9]*q|\x1bZ"
    rb"|\x1b\][0-9;]*;\?(?:\x07|\x1b\\)|\x1bP[+$]q[^\x1b]*\x1b\\"
)
_NORMALLY_ON: Final = frozenset({7, 25})
"""Wrapping at the right edge, and the cursor. Every other private mode of a terminal is off by default."""
_WHOLE_SCREEN: Final = frozenset({47, 1047, 1049})
_OTHER: Final = {b"h": b"l", b"l": b"h"}


class Line(Protocol):
    """A connection to a process with a pty."""

    async def read(self) -> bytes:
        """Return some of its output, or nothing once it has ended."""

    async def write(self, data: bytes) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...


class Ending(Enum):
    ENDED = "the process ended"
    LEFT = "the user left, the process keeps running"


class EscapeKeys:
    """Finds `~.` at the start of a line, as ssh does: leave, and keep the process running. `~~` types one `~`."""

    def __init__(self) -> None:
        self._at_start = True
        self._held = False

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """Return what to send to the process, and whether the user wants to leave."""
        passed = bytearray()
        for byte in typed:
            if self._held:
                self._held = False
                if byte == ord("."):
                    return bytes(passed), True
                passed.append(ord("~"))
                if byte == ord("~"):
                    self._at_start = False
                    continue
            elif self._at_start and byte == ord("~"):
                self._held = True
                continue
            passed.append(byte)
            self._at_start = byte in b"\r\n"
        return bytes(passed), False


class Modes:
    """The modes that a program in the box has changed, so that they can be reset if the user leaves before it ends."""

    def __init__(self) -> None:
        self._changed: dict[int, bytes] = {}

    def track(self, shown: bytes) -> None:
        if b"\x1b[?" not in shown:
            return
        for numbers, letter in _MODE.findall(shown):
            for number in (int(each) for each in numbers.split(b";") if each):
                if (letter == b"h") is (number in _NORMALLY_ON):
                    self._changed.pop(number, None)
                else:
                    self._changed[number] = b"l" if letter == b"h" else b"h"

    @property
    def full_screen(self) -> bool:
        """Whether a program uses the alternate screen, as editors do."""
        return not _WHOLE_SCREEN.isdisjoint(self._changed)

    def undo(self) -> bytes:
        undone = b"".join(b"\x1b[?%d%s" % each for each in self._changed.items())
        return undone + b"\x1b[0m" if undone else b""

    def redo(self) -> bytes:
        """The sequence that sets the program's modes again."""
        return b"".join(b"\x1b[?%d%s" % (each, _OTHER[letter]) for each, letter in self._changed.items())


def without_questions(shown: bytes) -> bytes:
    """Remove queries from earlier output: the terminal would answer them, and nothing waits for the answers now."""
    return _QUESTIONS.sub(b"", shown)


@dataclass
class Terminal:
    """Standard input and output of a terminal. Leaving the `with` block restores its settings."""

    keys: int = 0
    screen: int = 1
    modes: Modes = field(default_factory=Modes)

    @staticmethod
    def is_there() -> bool:
        return sys.stdin.isatty() and sys.stdout.isatty()

    def __enter__(self) -> Self:
        self._found = termios.tcgetattr(self.keys)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        """Send every key to the box, including Ctrl-C."""
        tty.setraw(self.keys, termios.TCSADRAIN)
        try:
            self._write(self.modes.redo())
            yield
        finally:
            self._restore()
            self._write(self.modes.undo())

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        try:
            columns, rows = os.get_terminal_size(self.screen)
        except OSError:
            return 24, 80
        return rows or 24, columns or 80

    async def typed(self) -> bytes:
        """Return the next keys, or nothing if the terminal is gone."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self.keys, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self.keys)
        try:
            return os.read(self.keys, 4096)
        except OSError:
            return b""

    def _write(self, sequence: bytes) -> None:
        if sequence:
            with contextlib.suppress(OSError):  # the terminal itself is gone
                os.write(self.screen, sequence)

    def _restore(self) -> None:
        with contextlib.suppress(termios.error):  # the terminal itself is gone
            termios.tcsetattr(self.keys, termios.TCSADRAIN, self._found)


@dataclass(frozen=True, slots=True)
class Signals:
    """Events that signals set."""

    resized: asyncio.Event = field(default_factory=asyncio.Event)
    asked_to_end: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.asynccontextmanager
async def signals() -> AsyncIterator[Signals]:
    """Handle signals while the block runs."""
    loop = asyncio.get_running_loop()
    caught = Signals()
    wanted = {
        signal.SIGWINCH: caught.resized,
        signal.SIGTERM: caught.asked_to_end,
        signal.SIGHUP: caught.asked_to_end,
    }
    for number, event in wanted.items():
        loop.add_signal_handler(number, event.set)
    try:
        yield caught
    finally:
        for number in wanted:
            loop.remove_signal_handler(number)


async def exchange(
    terminal: Terminal,
    line: Line,
    caught: Signals,
    *,
    shown: Callable[[bytes], None] = lambda _: None,
) -> Ending:
    """Exchange bytes between the terminal and the process until the process ends or the user leaves.

    `shown` is called with the bytes that were shown. Errors of the line are raised: the process may still be running.
    """
    screen = OutputPipe(terminal.screen)
    keys = EscapeKeys()

    async def show() -> Ending:
        while data := await line.read():
            terminal.modes.track(data)
            await screen.write(data)
            shown(data)
        await screen.flush()
        return Ending.ENDED

    async def type_() -> Ending:
        while typed := await terminal.typed():
            passed, leave = keys.feed(typed)
            if passed:
                await line.write(passed)
            if leave:
                break
        return Ending.LEFT

    async def follow_size() -> Ending:
        if terminal.modes.full_screen:
            # Such a program repaints only when the size changes.
            rows, columns = terminal.size
            await line.resize(rows, max(1, columns - 1))
        while True:
            await line.resize(*terminal.size)
            await caught.resized.wait()
            caught.resized.clear()

    async def await_termination() -> Ending:
        await caught.asked_to_end.wait()
        return Ending.LEFT

    with terminal.raw():
        return await _first(show(), type_(), follow_size(), await_termination())


async def _first(*works: Coroutine[Any, Any, Ending]) -> Ending:
    """Return the result of the first to end; the others are cancelled and awaited."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # In order of the arguments: if the process ended and the line broke at once, it ended.
    return next(task for task in tasks if task in done).result()
