"""Reads output that nobody wants any more. Loaded by process 1 with the first pipe.

A command may leave processes in the background that still print to its output. If nobody read that they would block,
and if nobody had it open, their next line would end them.
"""

import posix
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE = 65536
_MOST = 512
"""How many pipes are read at once. Further ones are closed."""
_open: "set[int]" = set()


def take(
    pipes: "list[int]",
    watch: "Callable[[int, int, Callable[[int], None]], None]",
    unwatch: "Callable[[int], None]",
) -> None:
    """Read these pipes to their end, and close them. `watch` and `unwatch` are those of process 1."""
    for each in pipes:
        try:
            if len(_open) >= _MOST:
                raise OSError
            posix.set_blocking(each, False)
            watch(each, select.EPOLLIN, reader(each, unwatch))
        except OSError:
            posix.close(each)
        else:
            _open.add(each)


def reader(pipe: int, unwatch: "Callable[[int], None]") -> "Callable[[int], None]":
    def read(events: int) -> None:
        try:
            data = posix.read(pipe, _PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            unwatch(pipe)
            _open.discard(pipe)
            posix.close(pipe)

    return read
