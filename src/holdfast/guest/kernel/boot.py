"""The beginning of a kernel: says where it listens before the rest is loaded, so that its host connects meanwhile.

What of the standard library it needs is loaded before this: a Python that lacks some of it ends without a port.
"""

import _socket
import os
import sys


def _raise_program(program: int) -> "dict[str, str]":
    """Keep the archive that this comes from where code that closes descriptors does not reach: some of it is loaded
    later. Returns the paths that have changed."""
    from holdfast.guest.kernel.descriptors import raised

    return {"/proc/self/fd/%d" % program: "/proc/self/fd/%d" % raised(program)}


def main(program: int, configuration: bytes) -> None:
    if sys.version_info < (3, 9):  # noqa: UP036 - what a box has is anybody's
        sys.exit("Python %s is too old" % sys.version.split()[0])
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    listener.listen(128)
    listener.setblocking(False)
    os.write(1, b'{"port": %d, "python": "%d.%d.%d"}\n' % (listener.getsockname()[1], *sys.version_info[:3]))

    from holdfast.guest.kernel import safe_builtins

    safe_builtins.install(_raise_program(program))
    from holdfast.guest.kernel import fork_server

    fork_server.run(listener, configuration)
