"""What connects a box to the network: the seam between providers and egress.

A box has no network of its own: whatever leaves it goes through an `Egress` on the host, which asks the policy. The
proxy itself is `holdfast.egress`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.api.network import DEFAULT_LIST as DEFAULT_LIST
from holdfast.api.network import Network as Network
from holdfast.api.network import NetworkPolicy as NetworkPolicy
from holdfast.api.network import Rule as Rule

PROXY_PORT: Final = 3128
"""Where a box finds the proxy and the guest API, on its own loopback."""
GUEST_API_URL: Final = f"http://127.0.0.1:{PROXY_PORT}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a box has sent and received through its egress, since its server started."""

    sent: int = 0
    received: int = 0
    open: int = 0
    """Connections now."""


class Egress(Protocol):
    """What connects boxes to the network. Given to providers; whoever composed them owns it.

    What asks for something by its path alone, as one asks a server and not a proxy, asks Holdfast itself: that is the
    guest API, which is open to a box whatever it may reach outside.

    A box is admitted when it runs, and dismissed when it does not. What it connects to on its `PROXY_PORT` reaches us
    as a listener, where descriptors can be passed, or connection by connection.
    """

    def admit(self, box: str, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Know a box, or its new policy: connections that are not allowed any more are ended."""

    def listen(self, box: str, listener: socket.socket) -> None:
        """Accept a box's connections from now on. Takes the listener, and closes it when the box is dismissed."""

    def take(self, box: str, connection: socket.socket) -> None:
        """One connection that a box made. Takes it."""

    def dismiss(self, box: str) -> None:
        """End everything of a box. One that is not known is fine."""

    def traffic(self, box: str) -> Traffic: ...

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        """What a box's processes need in their environment to find the proxy, and the registries of this machine."""
