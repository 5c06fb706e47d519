"""The listener for outgoing connections of a box."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest

from holdfast.guest.init.egress_listener import make_listener


def test_connections_of_an_earlier_guest_do_not_keep_the_port() -> None:
    first: Any = make_listener(0, False)
    port = first.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)) as client:
        descriptor, _ = first._accept()
        socket.close(descriptor)  # the kernel remembers the side that closes first
        assert client.recv(1) == b""
    first.close()
    second = make_listener(port, False)
    with pytest.raises(OSError, match="no listener") as caught:
        make_listener(port, False)
    assert caught.value.errno == errno.EADDRINUSE
    second.close()
