"""Connects local boxes to the egress proxy of this machine, and decides which process serves them.

The guest opens a listener inside the box, which has no other network, and passes its descriptor. Connections to it
arrive at the egress, which identifies the box by the listener and applies the policy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.errors.boxes import BoxConflict, BoxStopped, BoxUnreachable
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import PROXY_PORT, Egress, Traffic
from holdfast.providers.guest_protocol import GuestRefused
from holdfast.providers.host.guest_client import GuestClient

CAPABILITIES: Final = frozenset(
    {Capability.NETWORK_ALLOW, Capability.NETWORK_OPEN, Capability.NETWORK_LIVE, Capability.SECRETS}
)
_LISTEN_SECONDS: Final = 10.0
_LOCK: Final = "egress.lock"


class LocalEgress:
    """Connects the boxes of one folder. Owns the right to serve them from `claim` to `close`, but not the egress."""

    def __init__(self, egress: Egress | None) -> None:
        self._egress = egress
        self._lock: int | None = None
        self._listening: dict[str, int] = {}
        """By box: the process of the guest whose listener the egress has."""

    @property
    def serves(self) -> bool:
        return self._egress is not None and self._lock is not None

    def claim(self, folder: Path) -> None:
        """Take the right to serve the boxes of a folder, if there is an egress. The first process keeps it.

        Two processes accepting from the same boxes would each know only half of the changes.
        """
        if self._egress is None or self._lock is not None:
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return
        self._lock = lock

    def close(self) -> None:
        """Boxes keep running. Their connections wait for the next process that serves them."""
        if self._egress is not None:
            for box in self._listening:
                self._egress.dismiss(box)
        self._listening.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def open(self, guest: GuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Connect a box to the network as its policy allows, or apply a new policy.

        Raises `BoxConflict` if another process in the box has the port.
        """
        pid = guest.pid()
        if pid is None:
            raise BoxStopped(f"box {guest.box} is not running")
        if self.has(guest.box, pid):
            assert self._egress is not None
            self._egress.admit(guest.box, policy, labels)
            return
        self.shut(guest.box)
        if guest.paused:
            return  # the guest is frozen too: this is repeated when the box resumes
        # Even if no process serves it now, so that nothing in the box can take the port.
        listener = await _listener(guest)
        if self._egress is None or self._lock is None:
            listener.close()
            return
        self._egress.admit(guest.box, policy, labels)
        self._egress.listen(guest.box, listener)
        self._listening[guest.box] = pid

    def has(self, box: str, pid: int) -> bool:
        """Returns whether the listener of this guest process is served."""
        return self._listening.get(box) == pid

    def shut(self, box: str) -> None:
        """Call this when a box has ended."""
        if self._listening.pop(box, None) is not None and self._egress is not None:
            self._egress.dismiss(box)

    def traffic(self, box: str) -> Traffic | None:
        """Returns None if this process does not serve the boxes."""
        if self._egress is None or self._lock is None:
            return None
        return self._egress.traffic(box)

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        if self._egress is None:
            return {}
        return self._egress.environment(policy)


async def _listener(guest: GuestClient) -> socket.socket:
    """Returns the listener that the guest passes. It is checked, because the box may have taken over its guest."""
    try:
        _, received = await guest.ask_descriptors(
            {"op": "listen", "port": PROXY_PORT, "looks": True}, seconds=_LISTEN_SECONDS
        )
    except GuestRefused as refused:
        if refused.number == errno.EADDRINUSE:
            raise BoxConflict(
                f"a process in box {guest.box} listens on port {PROXY_PORT}, which its egress needs",
                hint="end that process, or stop and start the box",
            ) from None
        raise BoxUnreachable(
            f"box {guest.box} has no egress: {refused}",
            hint="stop and start the box: its guest may be older than this server",
        ) from None
    if len(received) != 1:
        for each in received:
            os.close(each)
        raise BoxUnreachable(f"the guest of box {guest.box} did not return a listener")
    try:
        listener = socket.socket(fileno=received[0])
    except OSError:
        os.close(received[0])
        raise BoxUnreachable(f"the guest of box {guest.box} returned something that is not a listener") from None
    listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6) or listener.type != socket.SOCK_STREAM:
        listener.close()
        raise BoxUnreachable(f"the guest of box {guest.box} returned something that is not a listener")
    listener.setblocking(False)
    return listener
