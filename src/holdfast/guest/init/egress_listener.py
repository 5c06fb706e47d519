"""The listener for outgoing connections of a box: created by the guest, served by the host. Loaded only if needed."""

import _socket
import errno


def make_listener(port: int, isolated: bool) -> "_socket.socket":
    """Listen on IPv4 and IPv6 at once, if the kernel has both. An isolated box has only loopback addresses.

    Raises OSError if the port is taken.
    """
    number = errno.EAFNOSUPPORT
    for family in (_socket.AF_INET6, _socket.AF_INET) if isolated else (_socket.AF_INET,):
        try:
            socket = _socket.socket(family, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC | _socket.SOCK_NONBLOCK)
        except OSError:
            continue
        try:
            if family == _socket.AF_INET6:
                socket.setsockopt(_socket.IPPROTO_IPV6, _socket.IPV6_V6ONLY, 0)
            # Connections of an earlier guest that was killed are remembered for a minute. They do not keep the port.
            socket.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            socket.bind(("::" if family == _socket.AF_INET6 else "127.0.0.1", port))
            socket.listen(1024)
            return socket
        except OSError as error:
            socket.close()
            number = error.errno or errno.EIO
            if number == errno.EADDRINUSE:
                break
    raise OSError(number, "no listener", str(port))
