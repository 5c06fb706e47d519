"""The output of a context: sent as it is printed, and kept in a file if it is long.

Python's streams are replaced by ours. Output to descriptors 1 and 2 (subprocesses, C code) arrives through pipes.
"""

import _collections  # type: ignore[import-not-found]
import _thread
import io
import posix
import sys

from holdfast.guest.kernel.descriptors import duplicate_high
from holdfast.guest.kernel.protocol import PIECE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.guest.kernel.connection import ContextConnection
    from holdfast.guest.kernel.interrupts import Interrupts

NAMES = {1: "stdout", 2: "stderr"}
FLUSH_MILLISECONDS = 20
"""How long a short output waits for more."""
_BUFFER = 1 << 15
KEPT = 64 << 20
"""The largest file of a stream, in bytes. The whole stream is sent anyway."""


class Output:
    """Both streams of a context."""

    def __init__(self, connection: "ContextConnection", interrupts: "Interrupts") -> None:
        self._connection = connection
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
        """Copies of descriptors 1 and 2, in case user code closes those."""
        self._wake_read, self._wake = _pipe(posix.O_NONBLOCK)
        self.printers = {number: Printer(self, number) for number in NAMES}
        self.is_pending = False

    def install(self) -> None:
        """Replace the streams of the process."""
        for number in NAMES:
            self._pipes[number], self._ends[number] = _pipe(0)
            posix.set_blocking(self._pipes[number], False)
            self.connect(number)
        sys.stdout, sys.stderr = self.printers[1], self.printers[2]
        sys.__stdout__, sys.__stderr__ = self.printers[1], self.printers[2]  # type: ignore[misc,assignment]

    def connect(self, number: int) -> None:
        """Connect descriptor 1 or 2 to its pipe."""
        posix.dup2(self._ends[number], number)

    def descriptors(self) -> "list[int]":
        """The descriptors that it needs."""
        return [*self._pipes.values(), *self._ends.values(), self._wake_read, self._wake]

    def watched(self) -> "dict[int, Callable[[], None]]":
        """Descriptors for the reading thread, with their callbacks."""
        found: dict[int, Callable[[], None]] = {self._wake_read: self._on_wake}
        for number, pipe in self._pipes.items():
            found[pipe] = lambda number=number: self.drain(number)  # type: ignore[misc]
        return found

    def _on_wake(self) -> None:
        try:
            posix.read(self._wake_read, 64)
        except BlockingIOError:
            pass
        self.is_pending = True

    def wake_reader(self) -> None:
        """Make the reading thread send pending output soon, whatever the code does meanwhile."""
        try:
            posix.write(self._wake, b".")
        except BlockingIOError:
            pass

    def close_inherited(self) -> None:
        """Close the copies of the parent's pipes, in a forked child."""
        for each in self.descriptors():
            posix.close(each)
        self._pipes, self._ends, self._files = {}, {}, {}

    def print_by_descriptors(self) -> None:
        """Print to descriptors 1 and 2, as any program does, in a process that user code forked."""
        for each in self.printers.values():
            each.__class__ = ForkedPrinter
        self.close_inherited()

    # --- one execution ---

    def begin(self, execution: str, limit: int, folder: str) -> None:
        with self.lock:
            self.execution, self._limit, self._folder = execution, limit, folder
            self._sizes = {1: 0, 2: 0}
            self._heads = {1: bytearray(), 2: bytearray()}

    def end(self) -> "list[dict[str, Any]]":
        """Send all pending output. Returns the files that hold a whole stream."""
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
        """The output of the last execution, if it is not in a file."""
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
        """Read what is in a pipe now."""
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
                self._connection.send({"t": "out", "s": number, "e": self.execution}, piece)
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
                self._sizes[number] = -(1 << 62)  # the disk is full: keep no file
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
    """A text stream that sends many small writes as one message."""

    def __init__(self, output: Output, number: int) -> None:
        super().__init__()
        self._output = output
        self._number = number
        self._pending: _collections.deque[str] = _collections.deque()
        self._size = 0
        self._woke_reader = False
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
        # A hot path: no lock, no encoding. Appending to a deque is safe while another thread pops from it.
        if not isinstance(text, str):
            raise TypeError("write() argument must be str, not %s" % type(text).__name__)
        self._pending.append(text)
        self._size += len(text)
        if self._size >= _BUFFER:
            self.flush()
        elif not self._woke_reader:
            self._woke_reader = True
            self._output.wake_reader()
        return len(text)

    def take(self, data: bytes) -> None:
        with self._output.interrupts, self._output.lock:
            self.flush()
            self._output.emit(self._number, data)

    def flush(self) -> None:
        with self._output.interrupts, self._output.lock:
            self._woke_reader = False
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
    """A `Printer` in a process that user code forked. Prints line by line. The parent prints text that was pending at
    the fork."""

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
    """Create a pipe with high descriptors."""
    ends = posix.pipe2(flags | posix.O_CLOEXEC)
    found = duplicate_high(ends[0]), duplicate_high(ends[1])
    for each in ends:
        posix.close(each)
    return found


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[posix.write(descriptor, left) :]


def make_folder(path: str) -> None:
    """Create a folder and its missing parents."""
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
