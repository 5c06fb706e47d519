"""The egress of one box: accepts its connections, and ends those that its policy no longer allows."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.egress.box_access import BoxAccess
from holdfast.egress.connection import NO_NETWORK, ProxyConnection
from holdfast.egress.policy import Allowance
from holdfast.egress.sockets import reset

_ACCEPTS: Final = 32
"""Connections accepted at a time, before other boxes get their turn."""
_PAUSE_SECONDS: Final = 0.05
"""Delay for a box that opens more connections than it may have."""

_log = logging.getLogger("holdfast.egress")


def _stay_on_this_machine(client: socket.socket) -> None:
    """Disables pacing between box and proxy, which are on one machine.

    If the machine's default congestion control paces (BBR), the timers alone cost as much as the bytes.
    """
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(OSError):  # keep the machine's default
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


class BoxEgress:
    """Owned by the proxy, which sets the policy and awaits the tasks of connections."""

    def __init__(
        self,
        access: BoxAccess,
        *,
        room: Callable[[int], bool],
        track: Callable[[asyncio.Task[None]], None],
        accept: Callable[[socket.socket], socket.socket],
    ) -> None:
        """`room` tells whether a box with this many connections may have one more. `track` takes over a task."""
        self.access = access
        self.connections: set[ProxyConnection] = set()
        self._room = room
        self._track = track
        self._accept_from = accept
        self._listener: socket.socket | None = None
        self._paused: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def use(self, policy: NetworkPolicy, allowance: Allowance, environment: NetworkPolicy | None = None) -> None:
        """Apply a policy. Ends connections that it does not allow."""
        self.access.use(policy, allowance, environment)
        for connection in tuple(self.connections):
            if connection.target is None:
                if allowance.mode is Network.NONE and connection.is_outside:
                    connection.end(f"the policy has changed: {NO_NETWORK}")
            elif not (ruling := self.access.judge(connection.target)).allowed:
                connection.end(f"the policy has changed: {ruling.why}")

    def listen(self, listener: socket.socket) -> None:
        self._stop_listening()
        listener.setblocking(False)
        self._listener = listener
        self._loop.add_reader(listener, self._accept)

    def take(self, client: socket.socket) -> bool:
        """Serve a connection, or refuse and close it. Returns whether it is served."""
        access = self.access
        if access.allowance.mode is Network.NONE and access.guest_api is None:
            why = NO_NETWORK
        elif len(self.connections) >= access.connections:
            why = f"this box has more than {access.connections} connections at once"
        elif not self._room(len(self.connections)):
            why = "all boxes together have too many connections at once"
        else:
            if client.family != socket.AF_UNIX:
                _stay_on_this_machine(client)
            connection = ProxyConnection(access, client)
            self.connections.add(connection)
            task = connection.start()
            self._track(task)
            task.add_done_callback(lambda task: self._ended(connection, task))
            return True
        reset(client)
        decision = access.record("", 0, "", False, why)
        decision.ms = 0
        access.records.complete(decision)
        return False

    def _ended(self, connection: ProxyConnection, task: asyncio.Task[None]) -> None:
        self.connections.discard(connection)
        connection.discard()
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("a connection of box %s failed", self.access.box, exc_info=problem)

    def close(self) -> None:
        self._stop_listening()
        for connection in tuple(self.connections):
            connection.end(None)

    def _accept(self) -> None:
        assert self._listener is not None
        refused = 0
        for _ in range(_ACCEPTS):
            try:
                client = self._accept_from(self._listener)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                break
            except OSError as error:
                _log.warning("box %s: cannot accept: %s", self.access.box, error)
                if error.errno == errno.EINVAL:  # it no longer listens
                    self._stop_listening()
                else:
                    self._pause(_PAUSE_SECONDS * 10)
                return
            refused += not self.take(client)
        if refused:
            self._pause(_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> None:
        assert self._listener is not None
        self._loop.remove_reader(self._listener)
        self._paused = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._paused = None
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept)

    def _stop_listening(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()
