"""Large pages for the memory of a context. A fork copies the page table, which is 500 times shorter with large pages.

malloc uses large pages by itself if it is configured at the start. Small objects of Python are in small pages, which
this module collapses while the context is idle.
"""

import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_LARGE = 2 << 20
_WORTHWHILE = 128 << 20
"""With less memory than this, a fork is fast anyway."""
_GROWN = 64 << 20
_COLLAPSE = 25
"""MADV_COLLAPSE of Linux 6.1. Older kernels refuse it."""
_EINVAL = 22
_ATTEMPTS = 16
"""The number of interrupted attempts, after which a context that is never idle for long is left alone."""


class Pages:
    def __init__(self) -> None:
        self._seen = 0
        """The resident bytes when pages were last collapsed."""
        self._interrupted = 0
        self._disabled = False

    def is_large(self) -> bool:
        """Returns whether there may be pages to collapse. This check is fast."""
        return not self._disabled and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 >= _WORTHWHILE

    def collapse(self, is_busy: "Callable[[], bool]") -> None:
        """Collapse pages until `is_busy` returns true. It is called about every millisecond."""
        try:
            resident = _resident()
            if resident < _WORTHWHILE or resident < self._seen + _GROWN:
                self._seen = min(self._seen, resident)
                return
            with open("/proc/self/smaps") as file:
                found = scattered(file)
            collapse = _collapser()
            for address in (each for start, end in found for each in range(start, end, _LARGE)):
                if is_busy():
                    self._interrupted += 1
                    if self._interrupted < _ATTEMPTS:
                        return  # continue later
                    break
                if collapse(address) == _EINVAL:
                    self._disabled = True
                    return
        except (OSError, ImportError, AttributeError, ValueError):
            self._disabled = True
            return
        self._seen, self._interrupted = resident, 0


def scattered(smaps: "Iterable[str]") -> "list[tuple[int, int]]":
    """Ranges where collapsing helps and costs no memory: resident, private and in small pages. Pages shared with a fork
    would be copied, and missing ones would be allocated."""
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
                end = start  # mapped from a file
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
        """Collapse one large page. Returns 0 or an errno; memory that another thread works on stays as it is."""
        return 0 if library.madvise(address, _LARGE, _COLLAPSE) == 0 else ctypes.get_errno()

    return collapse
