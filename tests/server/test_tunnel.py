"""The tunnel that carries an upgraded connection to a port of a box, by itself."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from holdfast.server.wire.tunnel import Tunnel

pytestmark = pytest.mark.anyio


async def test_a_tunnel_that_is_shut_down_before_it_began_closes_its_connection() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        unused: Any = None
        connections: set[Any] = set()
        tasks: set[asyncio.Task[None]] = set()
        tunnel = Tunnel(
            transport,
            unused,
            unused,
            method="GET",
            query=b"",
            headers=[],
            scheme="http",
            request_id="r",
            rest=b"",
            connections=connections,
            tasks=tasks,
        )
        assert connections == {tunnel}
        tunnel.shutdown()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (transport.is_closing(), connections, tasks) == (True, set(), set())
