"""A process of ours above one that was spawned: when that has ended, however, everything that it started is ended too.

It is forked off the guest and executes nothing, so that it costs little. What the spawned process and its descendants
leave behind falls to it, wherever they went: it needs no mark to find them by.
"""

import _signal  # type: ignore[import-not-found]
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.guest import process_tree
else:
    import process_tree


def tend(begin: "Callable[[], int]", tell: int) -> None:
    """In a new child of the guest's. Starts a process, tells its number, and exits as it did, after all of its own."""
    _signal.set_wakeup_fd(-1)
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    for number in (_signal.SIGINT, _signal.SIGHUP, _signal.SIGTERM):
        _signal.signal(number, lambda number, frame: None)  # what is ignored, who is started would ignore too
    posix.setsid()
    process_tree.adopt_orphans()
    pid = begin()
    # Who ends everything in a box asks the guest's children, where there is no namespace: pass it on.
    _signal.signal(_signal.SIGTERM, lambda number, frame: pass_on(pid, number))
    posix.write(tell, b"%d" % pid)
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
    """Until it has ended; others that fall to us meanwhile are seen off."""
    while True:
        ended, status = posix.waitpid(-1, 0)
        if ended == pid:
            return posix.WEXITSTATUS(status) if posix.WIFEXITED(status) else -posix.WTERMSIG(status)
