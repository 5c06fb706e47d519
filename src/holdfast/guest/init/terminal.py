"""Terminals of spawned processes. Loaded by process 1 with the first one."""

import fcntl
import posix
import select
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE = 65536
_PTY_PAUSE = 1 << 20
"""How many bytes are copied from one terminal before others get a turn."""
_KEPT = 256 << 20
"""How much of its latest output is kept at least, and half of what is kept at most. Readers may be that far behind."""
_PUNCH_HOLE = 3
"""Frees a range of a file and keeps its size: FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE."""


class Terminal:
    """The master side of a pty, copied to the output file.

    A terminal may carry a stream for days, so the file forgets its oldest output: the disk holds 512 MB of it at most.
    Offsets stay what they were, and what was forgotten is a hole.

    It is kept open until its process has exited, even if nothing has the other side open: closing it would hang up the
    process.
    """

    def __init__(
        self,
        master: int,
        output: int,
        watch: "Callable[[int, int, Callable[[int], None]], None]",
        unwatch: "Callable[[int], None]",
    ) -> None:
        """`watch` and `unwatch` are those of process 1."""
        self.master = master
        self.output = output
        self.open = True
        self.orphaned = False
        """Its process has exited, but others may still print to it."""
        self._written = 0
        self._forgotten = 0
        self._watch = watch
        self._unwatch = unwatch
        posix.set_blocking(master, False)
        watch(master, select.EPOLLIN | select.EPOLLET, self.on_event)

    def on_event(self, events: int) -> None:
        if self.copy() >= _PTY_PAUSE:
            self._watch(
                self.master, select.EPOLLIN | select.EPOLLET, self.on_event
            )  # makes epoll report the rest again

    def copy(self) -> int:
        """Copy the available output. Returns the number of bytes."""
        copied = 0
        while self.open and copied < _PTY_PAUSE:
            try:
                data = posix.read(self.master, _PIECE)
            except BlockingIOError:
                break
            except OSError:  # EIO: nothing has the other side open
                data = b""
            if not data:
                if self.orphaned:
                    self.close()
                break
            copied += len(data)
            try:
                while data:
                    count = posix.write(self.output, data)
                    data = data[count:]
                    self._written += count
                if self._written - self._forgotten >= 2 * _KEPT:
                    self._forgotten = self._written - _KEPT
                    forget(self.output, self._forgotten)
            except OSError:
                pass  # on a full disk, output is lost but the process continues
        return copied

    def process_ended(self) -> None:
        """Save the last output before the exit is reported."""
        self.orphaned = True
        while self.open and self.copy():
            pass

    def close(self) -> None:
        if self.open:
            self.open = False
            self._unwatch(self.master)
            posix.close(self.master)
            posix.close(self.output)


def forget(file: int, end: int) -> None:
    """Free what a file has before `end`. On a file system that cannot, it stays."""
    import _ctypes

    class Offset(_ctypes._SimpleCData):  # type: ignore[type-arg]
        _type_ = "q"

    fallocate = _ctypes.dlsym(_ctypes.dlopen(None, 0), "fallocate")  # type: ignore[arg-type]
    _ctypes.call_function(fallocate, (file, _PUNCH_HOLE, Offset(0), Offset(end)))


def set_size(terminal: int, rows: int, columns: int) -> None:
    size = rows.to_bytes(2, sys.byteorder) + columns.to_bytes(2, sys.byteorder) + b"\0\0\0\0"
    fcntl.ioctl(terminal, 0x5414, size)  # TIOCSWINSZ, the same on every Linux we support
