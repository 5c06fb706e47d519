"""The egress of boxes that are reached over streams, which carry connections from the boxes to the proxy."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import select
import socket
from collections.abc import Mapping
from typing import Final

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import BoxConflict, BoxUnreachable, Unsupported
from holdfast.boxes.network_policy import PROXY_PORT, Egress, Traffic
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.stream.guest_client import Call, StreamGuestClient

_PIECE: Final = 1 << 16


class StreamEgress:
    """The egress of all boxes of a provider that are reached over streams: which are admitted, and what they use.

    Does not own the `egress`; without one, no box is admitted. With `direct`, boxes have a network of their own, which
    their provider limits, and only the guest API goes this way.
    """

    def __init__(self, egress: Egress | None, *, direct: bool = False) -> None:
        self._egress = egress
        self._direct = direct
        self._open: set[str] = set()

    @property
    def exists(self) -> bool:
        return self._egress is not None

    def serves(self, id: str) -> bool:
        return id in self._open

    def wanted(self, policy: NetworkPolicy) -> bool:
        """Returns whether a box of this policy has an egress from its start."""
        return self.exists and not self._direct and policy.mode is not Network.NONE

    async def open(self, guest: StreamGuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Admit a running box, or change its policy. Does nothing for a box that may reach nothing."""
        if guest.box in self._open or self.wanted(policy):
            await self.open_guest_api(guest, policy, labels)

    async def open_guest_api(self, guest: StreamGuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Admit a running box, whatever its policy allows. Raises `Unsupported` if there is no egress."""
        if self._egress is None:
            raise Unsupported(f"box {guest.box} cannot reach Holdfast: its provider was opened without egress")
        self._egress.admit(guest.box, NetworkPolicy() if self._direct else policy, labels)
        if guest.box in self._open:
            return
        self._open.add(guest.box)
        try:
            await serve_egress(guest, self._egress)
        except BaseException:
            self.close(guest.box)
            raise

    async def serve_again(self, guest: StreamGuestClient) -> None:
        """Serve a box whose client has stopped serving, if it is admitted."""
        if self._egress is not None and guest.box in self._open:
            await serve_egress(guest, self._egress)

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        return self._egress.environment(policy) if self._egress is not None and self.wanted(policy) else {}

    def traffic(self, id: str) -> Traffic | None:
        return None if self._egress is None else self._egress.traffic(id)

    def close(self, id: str) -> None:
        if self._egress is not None and id in self._open:
            self._open.discard(id)
            self._egress.dismiss(id)

    def close_all(self) -> None:
        for id in list(self._open):
            self.close(id)


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
