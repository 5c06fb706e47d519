"""The caller's terminal, lent to a process in a box: raw, its size followed, and given back whole whatever happens."""

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

from holdfast.cli.terminal.pipes import Outlet

_PIECE: Final = 1 << 16
_MODE: Final = re.compile(rb"\x1b\[\?([0-9;]{1,32})([hl])")
_QUESTIONS: Final = re.compile(
    rb"\x1b\[[?>=]?[0-9;]*(?:n|c|u|\$p|t)|\x1b\[[>=]?[0-9]*q|\x1bZ"
    rb"|\x1b\][0-9;]*;\?(?:\x07|\x1b\\)|\x1bP[+$]q[^\x1b]*\x1b\\"
)
_NORMALLY_ON: Final = frozenset({7, 25})
"""Wrapping at the right edge, and the cursor. Every other private mode of a terminal is off until asked for."""


_WHOLE_SCREEN: Final = frozenset({47, 1047, 1049})
_OTHER: Final = {b"h": b"l", b"l": b"h"}


class Line(Protocol):
    """The far end: a process with a pty, over whatever leads there."""

    async def read(self) -> bytes:
        """Some of what it prints; empty once it has ended."""

    async def write(self, data: bytes) -> None: ...

    async def resize(self, rows: int, columns: int) -> None: ...


class Ending(Enum):
    ENDED = "the process ended"
    LEFT = "the caller left, the process goes on"


class EscapeKeys:
    """Finds `~.` at the beginning of a line, as ssh has it: leave, and let the process go on. `~~` types one `~`."""

    def __init__(self) -> None:
        self._at_start = True
        self._held = False

    def feed(self, typed: bytes) -> tuple[bytes, bool]:
        """What is for the process, and whether the caller wants to leave."""
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
    """What a program in the box has switched the terminal to, so that it can be switched back when we leave early."""

    def __init__(self) -> None:
        self._changed: dict[int, bytes] = {}

    def see(self, shown: bytes) -> None:
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
        """Whether a program has the whole screen, as editors do, and gives the former one back when it ends."""
        return not _WHOLE_SCREEN.isdisjoint(self._changed)

    def undo(self) -> bytes:
        undone = b"".join(b"\x1b[?%d%s" % each for each in self._changed.items())
        return undone + b"\x1b[0m" if undone else b""

    def redo(self) -> bytes:
        """As the program has it: for when it is back on the screen."""
        return b"".join(b"\x1b[?%d%s" % (each, _OTHER[letter]) for each, letter in self._changed.items())


def without_questions(shown: bytes) -> bytes:
    """What was printed before, without what a terminal would answer: nobody waits for those answers any more."""
    return _QUESTIONS.sub(b"", shown)


@dataclass
class Terminal:
    """Standard input and output, where both are a terminal. `with` restores it as it was found."""

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
        """Every key goes to the box, Ctrl-C too."""
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
        """The next keys; empty where the terminal is gone."""
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
class Happened:
    """What signals tell."""

    resized: asyncio.Event = field(default_factory=asyncio.Event)
    asked_to_end: asyncio.Event = field(default_factory=asyncio.Event)


@contextlib.asynccontextmanager
async def signals() -> AsyncIterator[Happened]:
    """Listens to them while it is open."""
    loop = asyncio.get_running_loop()
    happened = Happened()
    wanted = {
        signal.SIGWINCH: happened.resized,
        signal.SIGTERM: happened.asked_to_end,
        signal.SIGHUP: happened.asked_to_end,
    }
    for number, event in wanted.items():
        loop.add_signal_handler(number, event.set)
    try:
        yield happened
    finally:
        for number in wanted:
            loop.remove_signal_handler(number)


async def converse(
    terminal: Terminal,
    line: Line,
    happened: Happened,
    *,
    shown: Callable[[bytes], None] = lambda _: None,
) -> Ending:
    """Let the terminal and the process talk until one of them has had enough. `shown` is told what is on the screen.

    Errors of the line are the caller's: the process may well be there still.
    """
    screen = Outlet(terminal.screen)
    keys = EscapeKeys()

    async def show() -> Ending:
        while data := await line.read():
            terminal.modes.see(data)
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
            # Such a program paints it again when the size changes, and at no other time.
            rows, columns = terminal.size
            await line.resize(rows, max(1, columns - 1))
        while True:
            await line.resize(*terminal.size)
            await happened.resized.wait()
            happened.resized.clear()

    async def obey() -> Ending:
        await happened.asked_to_end.wait()
        return Ending.LEFT

    with terminal.raw():
        return await _first(show(), type_(), follow_size(), obey())


async def _first(*works: Coroutine[Any, Any, Ending]) -> Ending:
    """The result of whichever ends first; the others are cancelled and waited for."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    # In the order given: where the process ended and the line broke at once, it ended.
    return next(task for task in tasks if task in done).result()
