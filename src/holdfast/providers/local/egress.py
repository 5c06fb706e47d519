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

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import BoxConflict, BoxStopped, BoxUnreachable
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import PROXY_PORT, Egress, Traffic
from holdfast.providers.guest_answers import GuestRefused
from holdfast.providers.host.guest_client import GuestClient

CAPABILITIES: Final = frozenset({Capability.NETWORK_ALLOW, Capability.NETWORK_OPEN, Capability.NETWORK_LIVE})
_LISTEN_SECONDS: Final = 10.0
_LOCK: Final = "egress.lock"


class LocalEgress:
    """Connects the boxes of one folder. Owns the right to serve them from `claim` to `close`, but not the egress."""

    def __init__(self, egress: Egress | None) -> None:
        self._egress = egress
        self._lock: int | None = None
        self._listening: dict[str, int] = {}
        """Boxes whose listener the egress has, each with the process of the guest that it came from."""

    @property
    def serves(self) -> bool:
        return self._egress is not None and self._lock is not None

    def claim(self, folder: Path) -> None:
        """Take the right to serve a folder's boxes, where there is an egress to do it. Whoever has it keeps it.

        Two who accept from the same boxes would each know half of what was changed.
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
        """Boxes go on; what they connect to waits for the next who serves them."""
        if self._egress is not None:
            for box in self._listening:
                self._egress.dismiss(box)
        self._listening.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def open(self, guest: GuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Let a box out as far as its policy says; also where it is out already, and the policy is new.

        Raises `BoxConflict` where something else in the box has the port.
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
            return  # its pid is held too: it is asked when it goes on
        # Also where nobody serves it now: the port is taken before anything in the box can take it.
        listener = await _listener(guest)
        if self._egress is None or self._lock is None:
            listener.close()
            return
        self._egress.admit(guest.box, policy, labels)
        self._egress.listen(guest.box, listener)
        self._listening[guest.box] = pid

    def has(self, box: str, pid: int) -> bool:
        """Whether what this pid handed out is served."""
        return self._listening.get(box) == pid

    def shut(self, box: str) -> None:
        """The box does not run any more."""
        if self._listening.pop(box, None) is not None and self._egress is not None:
            self._egress.dismiss(box)

    def traffic(self, box: str) -> Traffic | None:
        """None where nobody here can tell."""
        if self._egress is None or self._lock is None:
            return None
        return self._egress.traffic(box)

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        if self._egress is None or policy.mode is Network.NONE:
            return {}
        return self._egress.environment(policy)


async def _listener(guest: GuestClient) -> socket.socket:
    """The box's own, as its guest hands it out: looked at closely, since the guest may be anybody's by now."""
    try:
        _, given = await guest.ask_descriptors(
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
    if len(given) != 1:
        for each in given:
            os.close(each)
        raise BoxUnreachable(f"the guest of box {guest.box} did not return a listener")
    try:
        listener = socket.socket(fileno=given[0])
    except OSError:
        os.close(given[0])
        raise BoxUnreachable(f"the guest of box {guest.box} returned something that is not a listener") from None
    listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6) or listener.type != socket.SOCK_STREAM:
        listener.close()
        raise BoxUnreachable(f"the guest of box {guest.box} returned something that is not a listener")
    listener.setblocking(False)
    return listener
