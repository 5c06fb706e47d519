"""Upgraded connections to programs in boxes, by themselves."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from holdfast.gateway.proxy.upgrade import UpgradedConnection

pytestmark = pytest.mark.anyio


async def test_a_connection_that_is_shut_down_before_it_began_is_closed() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        unused: Any = None
        connections: set[Any] = set()
        tasks: set[asyncio.Task[None]] = set()
        connection = UpgradedConnection(
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
        assert connections == {connection}
        connection.shutdown()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (transport.is_closing(), connections, tasks) == (True, set(), set())
