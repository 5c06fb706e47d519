"""Where a context keeps its own descriptors: high up, where code that closes all that it knows of does not reach.

Code that closes those, too, has cut itself off. That is found when its execution ends, and the process ends with a
code that says so.
"""

import fcntl
import resource
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CUT_OFF = 97
"""The exit code of a context whose code closed the descriptors by which it is reached."""
_BELOW = 64
_NUMBERS = 1024
"""Higher ones would make the table of descriptors large, which every fork copies."""

_poll, _POLLIN, _POLLNVAL = select.poll, select.POLLIN, select.POLLNVAL
_fcntl, _DUP = fcntl.fcntl, fcntl.F_DUPFD_CLOEXEC


def _lowest() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(3, (_NUMBERS if soft < 0 else min(soft, _NUMBERS)) - _BELOW)


_LOWEST = _lowest()


def raised(descriptor: int) -> int:
    """A copy of it up there, closed in programs that are started. The original stays open."""
    try:
        return _fcntl(descriptor, _DUP, _LOWEST)
    except OSError:  # they are all taken: then wherever there is room
        return _fcntl(descriptor, _DUP, 3)


def wait_for(descriptor: int) -> None:
    """Until it can be read."""
    poll = _poll()
    poll.register(descriptor, _POLLIN)
    poll.poll()


def closed(descriptors: "Iterable[int]") -> "list[int]":
    """Which of these are not open."""
    poll = _poll()
    for each in descriptors:
        poll.register(each, 0)
    return [each for each, events in poll.poll(0) if events & _POLLNVAL]
