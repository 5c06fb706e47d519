"""Everything that a process has started, however far it went: found by parents, and ended.

Whoever uses it has to be the one that orphans fall to (process 1, or a subreaper): a process can leave its group, its
session and its parent, but not its reaper. Knows nothing of what the processes are.
"""

import posix

SIGTERM = 15
SIGKILL = 9
_SUBREAPER = 36
_DUMPABLE = 4


def adopt_orphans() -> None:
    """From now on, what this process's descendants leave behind becomes its child."""
    _control(_SUBREAPER, 1)


def close_to_others() -> None:
    """Nobody of the same user may look into this process's memory, or take its descriptors."""
    _control(_DUMPABLE, 0)


def _control(option: int, value: int) -> None:
    # All of ctypes would take longer than the rest of a start.
    import _ctypes

    prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]
    _ctypes.call_function(prctl, (option, value, 0, 0, 0))


def find_descendants(root: int, spared: "list[int] | tuple[()]" = ()) -> "list[int]":
    """All that live below a process, those nearest to it first. The dead that nobody has seen off are left out, and so
    are those that are `spared`, with all below them."""
    children: dict[int, list[int]] = {}
    for name in posix.listdir("/proc"):
        if name.isdigit():
            parent = _parent(name)
            if parent:
                children.setdefault(parent, []).append(int(name))
    found: list[int] = []
    look = [root]
    while look:
        below = [each for each in children.pop(look.pop(0), []) if each not in spared]
        found += below
        look += below
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
    # After the name, which may hold anything.
    fields = data[data.rfind(b")") + 2 :].split(None, 2)
    return int(fields[1]) if len(fields) == 3 and fields[0] not in (b"Z", b"X") else 0


def send_to(processes: "list[int]", number: int) -> None:
    for pid in processes:
        try:
            posix.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def reap() -> "list[tuple[int, int]]":
    """See off every child that has ended: its number, and its exit code, which is negative for a signal."""
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
    """Kill every descendant of this process, and wait until none is left: what is being born meanwhile dies next.

    Says whether none is left. Blocks: some milliseconds, ten seconds where something cannot be killed.
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
