"""Large pages for what a context holds: a fork copies the list of pages, and a list of large ones is five hundred times
shorter.

malloc asks for large pages by itself, where it was told to at its start. Python's own small objects come in small
ones, which are gathered here while nobody waits for the context.
"""

import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LARGE = 2 << 20
_WORTHWHILE = 128 << 20
"""Bytes in memory below which a fork is quick anyhow."""
_GROWN = 64 << 20
_COLLAPSE = 25
"""MADV_COLLAPSE, of Linux 6.1. Older ones refuse it, and nothing is changed."""
_EINVAL = 22
_ATTEMPTS = 16
"""Times that it is begun anew. A context that is never idle for long is left as it is."""


class Pages:
    def __init__(self) -> None:
        self._seen = 0
        """Bytes that were in memory when it was last gathered."""
        self._broken_off = 0
        self._given_up = False

    def is_large(self) -> bool:
        """Whether there may be something to gather. Quick."""
        return not self._given_up and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 >= _WORTHWHILE

    def gather(self, wanted: "Callable[[], bool]") -> None:
        """Gather until `wanted` says that there is something else to do, which it is asked every millisecond or so."""
        try:
            resident = _resident()
            if resident < _WORTHWHILE or resident < self._seen + _GROWN:
                self._seen = min(self._seen, resident)
                return
            with open("/proc/self/smaps") as file:
                found = scattered(file)
            collapse = _collapser()
            for address in (each for start, end in found for each in range(start, end, _LARGE)):
                if wanted():
                    self._broken_off += 1
                    if self._broken_off < _ATTEMPTS:
                        return  # the rest another time
                    break
                if collapse(address) == _EINVAL:
                    self._given_up = True
                    return
        except (OSError, ImportError, AttributeError, ValueError):
            self._given_up = True
            return
        self._seen, self._broken_off = resident, 0


def scattered(smaps: "Iterable[str]") -> "list[tuple[int, int]]":
    """Where gathering helps and costs no memory: all of it is there, in small pages, and nobody else's. What a fork
    shares would be copied, and what is not there would be made."""
    found: list[tuple[int, int]] = []
    start = end = private = large = 0
    for line in (*smaps, "0-0 the end"):
        name, _, rest = line.partition(" ")
        if name[-1:] != ":":
            size = end - start
            if 0 < size - size // 16 <= private and large < size // 2:
                first, last = -(-start // _LARGE) * _LARGE, end // _LARGE * _LARGE
                if first < last:
                    found.append((first, last))
            begin, _, stop = name.partition("-")
            start, end, private, large = int(begin, 16), int(stop, 16), 0, 0
            if not rest.startswith("rw-p 00000000 00:00 0"):
                end = start  # of a file
        elif name in ("Private_Dirty:", "Private_Clean:"):
            private += int(rest.split()[0]) << 10
        elif name == "AnonHugePages:":
            large = int(rest.split()[0]) << 10
    return found


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def _collapser() -> "Callable[[int], int]":
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def collapse(address: int) -> int:
        """Gather one large page, or say why not. Somebody else may be at work on that memory: then it stays as it
        is."""
        return 0 if library.madvise(address, _LARGE, _COLLAPSE) == 0 else ctypes.get_errno()

    return collapse
