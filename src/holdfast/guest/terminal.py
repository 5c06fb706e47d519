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


class Terminal:
    """The master side of a pty, copied to the output file.

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
                    data = data[posix.write(self.output, data) :]
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


def set_size(terminal: int, rows: int, columns: int) -> None:
    size = rows.to_bytes(2, sys.byteorder) + columns.to_bytes(2, sys.byteorder) + b"\0\0\0\0"
    fcntl.ioctl(terminal, 0x5414, size)  # TIOCSWINSZ, the same on every Linux we support
