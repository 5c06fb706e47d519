"""A supervisor process above one that was spawned. When that has ended, everything that it started is ended too.

It is forked from the guest and executes no program, so it is cheap. Orphans of the spawned process become its children
wherever they went, so it finds all of them.
"""

import _signal  # type: ignore[import-not-found]
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.guest.init import process_tree
else:
    import process_tree


def supervise(begin: "Callable[[], int]", writer: int) -> None:
    """Runs in a new child of the guest. Starts a process, reports its pid, ends all its descendants, and exits as it
    did."""
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    for number in (_signal.SIGINT, _signal.SIGHUP, _signal.SIGTERM):
        # an ignored signal would be ignored in the started process too
        _signal.signal(number, lambda number, frame: None)
    posix.setsid()
    process_tree.adopt_orphans()
    pid = begin()
    # Without a namespace, ending a box signals the guest's children: pass it on.
    _signal.signal(_signal.SIGTERM, lambda number, frame: pass_on(pid, number))
    posix.write(writer, b"%d" % pid)
    for name in posix.listdir("/proc/self/fd"):
        try:
            posix.close(int(name))
        except OSError:
            pass
    code = wait_for(pid)
    process_tree.end_all()
    posix._exit(code if code >= 0 else 128 - code)


def pass_on(pid: int, number: int) -> None:
    try:
        posix.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def wait_for(pid: int) -> int:
    """Wait until a process has ended, and reap other children meanwhile."""
    while True:
        ended, status = posix.waitpid(-1, 0)
        if ended == pid:
            return posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else -posix.WTERMSIG(status)
