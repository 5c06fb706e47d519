"""The descriptors of a context have high numbers, which user code that closes descriptors is unlikely to reach.

If user code closes them anyway, the context is cut off from its host. That is noticed when the execution ends, and the
process ends with the exit code `CUT_OFF`.
"""

import fcntl
import resource
import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

CUT_OFF = 97
"""The exit code of a context whose code closed its connection to the host."""
_BELOW = 64
_NUMBERS = 1024
"""Higher numbers would enlarge the table of descriptors, which every fork copies."""

_poll, _POLLIN, _POLLNVAL = select.poll, select.POLLIN, select.POLLNVAL
_fcntl, _DUP = fcntl.fcntl, fcntl.F_DUPFD_CLOEXEC


def _lowest() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(3, (_NUMBERS if soft < 0 else min(soft, _NUMBERS)) - _BELOW)


_LOWEST = _lowest()


def duplicate_high(descriptor: int) -> int:
    """Duplicate a descriptor to a high number, closed on exec. The original stays open."""
    try:
        return _fcntl(descriptor, _DUP, _LOWEST)
    except OSError:  # no high number is free: take any
        return _fcntl(descriptor, _DUP, 3)


def wait_for(descriptor: int) -> None:
    """Wait until a descriptor can be read."""
    poll = _poll()
    poll.register(descriptor, _POLLIN)
    poll.poll()


def closed(descriptors: "Iterable[int]") -> "list[int]":
    """Return the descriptors that are not open."""
    poll = _poll()
    for each in descriptors:
        poll.register(each, 0)
    return [each for each, events in poll.poll(0) if events & _POLLNVAL]
