"""The entry point of a kernel. It prints its port before it loads the rest, so that the host can connect meanwhile.

The modules of the standard library that it needs are loaded before: a Python that lacks one ends without a port.
"""

import _socket
import os
import sys


def _move_program(program: int) -> "dict[str, str]":
    """Move the archive with our modules to a high descriptor, which user code is unlikely to close: some modules are
    loaded later. Returns the paths that have changed."""
    from holdfast.guest.kernel.descriptors import duplicate_high

    return {"/proc/self/fd/%d" % program: "/proc/self/fd/%d" % duplicate_high(program)}


def main(program: int, configuration: bytes) -> None:
    if sys.version_info < (3, 9):  # noqa: UP036 - a box may have any Python
        sys.exit("Python %s is too old" % sys.version.split()[0])
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    listener.setblocking(False)
    os.write(1, b'{"port": %d, "python": "%d.%d.%d"}\n' % (listener.getsockname()[1], *sys.version_info[:3]))

    from holdfast.guest.kernel import safe_builtins

    safe_builtins.install(_move_program(program))
    from holdfast.guest.kernel import fork_server

    fork_server.run(listener, configuration)
