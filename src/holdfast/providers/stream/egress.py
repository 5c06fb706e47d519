"""The egress of a box that is reached over a stream, which carries connections from the box to the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import socket
from typing import Final

from holdfast.api.errors.boxes import BoxConflict, BoxUnreachable
from holdfast.boxes.network_policy import PROXY_PORT, Egress
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.stream.guest_client import Call, StreamGuestClient

_PIECE: Final = 1 << 16


async def serve_egress(guest: StreamGuestClient, egress: Egress, *, port: int = PROXY_PORT) -> int:
    """Pass every connection that the box makes to its proxy port to the egress. Returns the port.

    The egress must have admitted the box. Serving continues over streams that are lost and dialled again, until the
    client is closed or `stop_serving` is called. Raises `BoxConflict` if another process in the box has the port.
    """

    async def opened(call: Call) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            theirs.setblocking(False)
            egress.take(guest.box, theirs)
            await _relay(call, ours)

    try:
        return await guest.serve(port, opened)
    except GuestRefused as refused:
        if refused.number == errno.EADDRINUSE:
            raise BoxConflict(
                f"a process in box {guest.box} listens on port {port}, which its egress needs",
                hint="end that process, or stop and start the box",
            ) from None
        raise BoxUnreachable(f"box {guest.box} has no egress: {refused}") from None


async def _relay(call: Call, connection: socket.socket) -> None:
    """Copy in both directions, until both have ended or either fails."""
    tasks = [asyncio.create_task(_outward(call, connection)), asyncio.create_task(_inward(call, connection))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _outward(call: Call, connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await call.streams[0].read(_PIECE):
        await loop.sock_sendall(connection, data)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


async def _inward(call: Call, connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(connection, _PIECE):
        await call.streams[0].write(data)
    call.streams[0].finish()
    # The peer has closed it completely, so there is no reason to keep the box's end open.
    poll = select.poll()
    poll.register(connection, 0)
    if any(events & select.POLLHUP for _, events in poll.poll(0)):
        raise ConnectionAbortedError(errno.ECONNABORTED, "closed for good")
