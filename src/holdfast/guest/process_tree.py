"""Finds and ends everything that a process has started, by following parents.

The caller must be the reaper of orphans (process 1, or a subreaper): a process can leave its group, session and parent,
but not its reaper.
"""

import posix

SIGTERM = 15
SIGKILL = 9
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


def _parent(name: str) -> int:
    try:
        descriptor = posix.open("/proc/" + name + "/stat", posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return 0
    try:
        data = posix.read(descriptor, 512)
    except OSError:
        return 0
    finally:
        posix.close(descriptor)
    # After the name, which may contain anything.
    fields = data[data.rfind(b")") + 2 :].split(None, 2)
    return int(fields[1]) if len(fields) == 3 and fields[0] not in (b"Z", b"X") else 0


def send_to(processes: "list[int]", number: int) -> None:
    for pid in processes:
        try:
            posix.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


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
