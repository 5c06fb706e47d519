"""What a context prints: sent as it comes, and kept whole in a file where it is much.

Python's own streams are ours; what goes to descriptors 1 and 2 (subprocesses, C code) comes through pipes.
"""

import _collections  # type: ignore[import-not-found]
import _thread
import io
import posix
import sys

from holdfast.guest.kernel.descriptors import raised
from holdfast.guest.kernel.protocol import PIECE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.guest.kernel.connection import ContextConnection
    from holdfast.guest.kernel.interrupts import Interrupts

NAMES = {1: "stdout", 2: "stderr"}
FLUSH_MILLISECONDS = 20
"""How long a few words may wait for more."""
_BUFFER = 1 << 15
KEPT = 64 << 20
"""Bytes of a stream that an execution keeps in a file, at most. All of it is sent all the same."""


class Output:
    """Both streams of a context."""

    def __init__(self, line: "ContextConnection", interrupts: "Interrupts") -> None:
        self._line = line
        self.interrupts = interrupts
        self.lock = _thread.RLock()
        self.execution = ""
        self._limit = 0
        self._folder = ""
        self._heads: dict[int, bytearray] = {1: bytearray(), 2: bytearray()}
        self._files: dict[int, tuple[str, io.FileIO]] = {}
        self._sizes = {1: 0, 2: 0}
        self._pipes: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        """Copies of what is at 1 and 2, for when those were closed."""
        self._wake_read, self._wake = _pipe(posix.O_NONBLOCK)
        self.printers = {number: Printer(self, number) for number in NAMES}
        self.nudged = False

    def install(self) -> None:
        """Take the process's streams."""
        for number in NAMES:
            self._pipes[number], self._ends[number] = _pipe(0)
            posix.set_blocking(self._pipes[number], False)
            self.connect(number)
        sys.stdout, sys.stderr = self.printers[1], self.printers[2]
        sys.__stdout__, sys.__stderr__ = self.printers[1], self.printers[2]  # type: ignore[misc,assignment]

    def connect(self, number: int) -> None:
        """Have descriptor 1 or 2 lead here."""
        posix.dup2(self._ends[number], number)

    def descriptors(self) -> "list[int]":
        """Those that it cannot be without."""
        return [*self._pipes.values(), *self._ends.values(), self._wake_read, self._wake]

    def watched(self) -> "dict[int, Callable[[], None]]":
        """What the thread that reads is to look at."""
        found: dict[int, Callable[[], None]] = {self._wake_read: self._woken}
        for number, pipe in self._pipes.items():
            found[pipe] = lambda number=number: self.drain(number)  # type: ignore[misc]
        return found

    def _woken(self) -> None:
        try:
            posix.read(self._wake_read, 64)
        except BlockingIOError:
            pass
        self.nudged = True

    def nudge(self) -> None:
        """Something small was printed: have it sent soon, whatever the code does then."""
        try:
            posix.write(self._wake, b".")
        except BlockingIOError:
            pass

    def let_go(self) -> None:
        """In a forked child: the pipes are the parent's."""
        for each in self.descriptors():
            posix.close(each)
        self._pipes, self._ends, self._files = {}, {}, {}

    def print_by_descriptors(self) -> None:
        """In a process that the user's code forked: what it prints goes to descriptors 1 and 2, as with any program."""
        for each in self.printers.values():
            each.__class__ = ForkedPrinter
        self.let_go()

    # --- one execution ---

    def begin(self, execution: str, limit: int, folder: str) -> None:
        with self.lock:
            self.execution, self._limit, self._folder = execution, limit, folder
            self._sizes = {1: 0, 2: 0}
            self._heads = {1: bytearray(), 2: bytearray()}

    def end(self) -> "list[dict[str, Any]]":
        """Everything printed so far is on its way. Says which files keep a stream whole."""
        self.flush()
        for number in NAMES:
            self.drain(number)
        with self.lock:
            kept = []
            for number, (path, file) in self._files.items():
                file.close()
                size = min(KEPT, self._sizes[number])
                kept.append({"name": NAMES[number], "media": "text/plain", "path": path, "size": size})
            self._files = {}
            self.execution = ""
            return kept

    def printed(self) -> "dict[str, str]":
        """By the last execution, where no file has it."""
        with self.lock:
            return {
                NAMES[number]: bytes(head).decode("utf-8", "replace")
                for number, head in self._heads.items()
                if self._sizes[number] <= self._limit
            }

    def flush(self) -> None:
        for each in self.printers.values():
            each.flush()

    def drain(self, number: int) -> None:
        """What is in a pipe now."""
        with self.lock:
            while True:
                try:
                    data = posix.read(self._pipes[number], PIECE)
                except OSError:
                    return
                if not data:
                    return
                self.printers[number].flush()
                self.emit(number, data)

    def emit(self, number: int, data: bytes) -> None:
        with self.lock:
            if self.execution:
                self._save(number, data)
            start = 0
            while start < len(data):
                piece = data[start : start + PIECE]
                self._line.send({"t": "out", "s": number, "e": self.execution}, piece)
                start += PIECE

    def _save(self, number: int, data: bytes) -> None:
        self._sizes[number] += len(data)
        file = self._files.get(number)
        if file is None:
            head = self._heads[number]
            head += data
            if self._sizes[number] <= self._limit:
                return
            try:
                make_folder(self._folder)
                path = "%s/%s.txt" % (self._folder, NAMES[number])
                file = self._files[number] = (path, io.FileIO(path, "w"))
            except OSError:
                self._sizes[number] = -(1 << 62)  # a full disk: what was sent is all there is
                return
            data = bytes(head)
            head.clear()
        room = KEPT - (self._sizes[number] - len(data))
        if room <= 0:
            return
        try:
            file[1].write(data[:room])
        except OSError:
            pass


class Printer(io.TextIOBase):
    """A text stream whose words are sent: many small writes as one."""

    def __init__(self, output: Output, number: int) -> None:
        super().__init__()
        self._output = output
        self._number = number
        self._pending: _collections.deque[str] = _collections.deque()
        self._size = 0
        self._nudged = False
        self.buffer = _Bytes(self)

    encoding = "utf-8"
    errors = "backslashreplace"
    newlines = None

    @property
    def name(self) -> str:
        return "<%s>" % NAMES[self._number]

    @property
    def mode(self) -> str:
        return "w"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._number

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        # Called a million times: no lock, no bytes yet. Who takes from the other end of a deque disturbs nobody.
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        self._pending.append(text)
        self._size += len(text)
        if self._size >= _BUFFER:
            self.flush()
        elif not self._nudged:
            self._nudged = True
            self._output.nudge()
        return len(text)

    def take(self, data: bytes) -> None:
        with self._output.interrupts, self._output.lock:
            self.flush()
            self._output.emit(self._number, data)

    def flush(self) -> None:
        with self._output.interrupts, self._output.lock:
            self._nudged = False
            self._size = 0
            words = []
            try:
                while True:
                    words.append(self._pending.popleft())
            except IndexError:
                pass
            if words:
                self._output.emit(self._number, "".join(words).encode("utf-8", "backslashreplace"))

    def reconfigure(self, **options: object) -> None:
        pass


class ForkedPrinter(Printer):
    """What a `Printer` becomes in a process that the user's code forked. Sends a line at a time. What is pending in it
    at first is the parent's, and is printed there."""

    @property
    def _lines(self) -> "list[str]":
        return self.__dict__.setdefault("lines", [])  # type: ignore[no-any-return]

    def write(self, text: str) -> int:
        self._lines.append(text)
        if "\n" in text:
            self.flush()
        return len(text)

    def take(self, data: bytes) -> None:
        self.flush()
        _write_all(self._number, data)

    def flush(self) -> None:
        lines = self._lines
        text = "".join(lines)
        lines.clear()
        _write_all(self._number, text.encode("utf-8", "backslashreplace"))


class _Bytes(io.RawIOBase):
    def __init__(self, printer: Printer) -> None:
        super().__init__()
        self._printer = printer

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._printer.fileno()

    def write(self, data: "Any") -> int:
        self._printer.take(bytes(data))
        return len(data)

    def flush(self) -> None:
        self._printer.flush()


def _pipe(flags: int) -> "tuple[int, int]":
    """Out of the way of code that closes descriptors."""
    ends = posix.pipe2(flags | posix.O_CLOEXEC)
    found = raised(ends[0]), raised(ends[1])
    for each in ends:
        posix.close(each)
    return found


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[posix.write(descriptor, left) :]


def make_folder(path: str) -> None:
    """With those above it, where they are missing."""
    try:
        posix.mkdir(path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        above = path.rpartition("/")[0]
        if not above:
            raise
        make_folder(above)
        posix.mkdir(path)
