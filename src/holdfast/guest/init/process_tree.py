"""Finds and ends everything that a process has started, by following parents.

The caller must be the reaper of orphans (process 1, or a subreaper): a process can leave its group, session and parent,
but not its reaper.
"""

import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SIGTERM = 15
SIGKILL = 9
_SIGSTOP = 19
_MOST = 1 << 16
_SUBREAPER = 36
_DUMPABLE = 4


def adopt_orphans() -> None:
    """Make this process the parent of its descendants' orphans from now on."""
    _control(_SUBREAPER, 1)


def close_to_others() -> None:
    """Keep other processes of the same user from reading this process's memory or taking its descriptors."""
    _control(_DUMPABLE, 0)


def _control(option: int, value: int) -> None:
    # Importing all of ctypes would take longer than the rest of the start.
    import _ctypes

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    _ctypes.call_function(prctl, (option, value, 0, 0, 0))


def find_descendants(root: int, spared: "list[int] | tuple[()]" = ()) -> "list[int]":
    """Returns all live processes below a process, nearest first. Zombies are left out, and so are `spared` processes
    with everything below them.
    """
    children: dict[int, list[int]] = {}
    for name in posix.listdir("/proc"):
        if name.isdigit():
            parent = _parent(name)
            if parent:
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    pending = [root]
    while pending:
        below = [each for each in children.pop(pending.pop(0), []) if each not in spared]
        found += below
        pending += below
    return found


def _read(path: str, most: int) -> bytes:
    """Returns the beginning of a file of `/proc`, or nothing if its process is gone."""
    try:
        descriptor = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return posix.read(descriptor, most)
    except OSError:
        return b""
    finally:
        posix.close(descriptor)


def _parent(name: str) -> int:
    data = _read("/proc/" + name + "/stat", 512)
    # After the name, which may contain anything.
    fields = data[data.rfind(b")") + 2 :].split(None, 2)
    return int(fields[1]) if len(fields) == 3 and fields[0] not in (b"Z", b"X") else 0


def send_to(processes: "list[int]", number: int) -> None:
    for pid in processes:
        try:
            posix.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def end_others(is_meant: "Callable[[list[bytes]], bool]") -> None:
    """Kill the other processes whose commands are meant, with everything below them.

    They are stopped before they are killed: what starts meanwhile would have no parent any more, and not be found.
    """
    found: list[int] = []
    while True:
        more = [int(name) for name in posix.listdir("/proc") if name.isdigit() and is_meant(_command(name))]
        more = [root for root in more if root != posix.getpid()]
        more += [each for root in more for each in find_descendants(root, [posix.getpid()])]
        more = [each for each in more if each not in found]
        if not more:
            break
        send_to(more, _SIGSTOP)
        found += more
    send_to(found, SIGKILL)


def _command(name: str) -> "list[bytes]":
    return _read("/proc/" + name + "/cmdline", _MOST).split(b"\0")


def reap() -> "list[tuple[int, int]]":
    """Reap all exited children. Returns their pids and exit codes, which are negative for a signal."""
    ended: list[tuple[int, int]] = []
    while True:
        try:
            pid, status = posix.waitpid(-1, posix.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append((pid, posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else -posix.WTERMSIG(status)))


def end_all(rounds: int = 2000) -> bool:
    """Kill all descendants of this process, and repeat until none is left, because new ones may start meanwhile.

    Returns whether none is left. Blocks for some milliseconds, or for ten seconds if something cannot be killed.
    """
    import select

    for _ in range(rounds):
        left = find_descendants(posix.getpid())
        reap()
        if not left:
            return True
        send_to(left, SIGKILL)
        select.select([], [], [], 0.005)
    return False
