"""The interface between providers and egress, which connects boxes to the network.

A box has no network of its own. All its traffic goes through an `Egress` on the host, which applies the policy. The
proxy that implements it is `holdfast.egress`.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.api.box.box import Box
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.errors.boxes import Unsupported

PROXY_PORT: Final = 3128
"""The port on the box's loopback that serves the proxy and the guest API."""
GUEST_API_URL: Final = f"http://127.0.0.1:{PROXY_PORT}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a box has sent and received through its egress since the server started."""

    sent: int = 0
    received: int = 0
    open: int = 0
    """Connections that are open now."""


class PolicySecrets(Protocol):
    """The secrets that network policies name: whether a box could use them, and the files that it needs."""

    def check(self, policy: NetworkPolicy) -> None:
        """Raises `SecretMissing` or `InvalidSpec` if a box of this policy could not use its secrets."""

    def needs_files(self, policy: NetworkPolicy) -> bool:
        """Returns whether `place` has anything to write for a box of this policy."""
        ...

    async def place(self, box: Box, thread: str | None, policy: NetworkPolicy) -> None:
        """Write the files into a running box. Doing it again replaces them. Raises `BoxError` or `SecretMissing`."""

    def exposed(self, policy: NetworkPolicy) -> tuple[str, ...]:
        """Returns the names of the secrets whose values are in a box of this policy."""
        ...


class NoSecrets:
    """`PolicySecrets` where there are none."""

    def check(self, policy: NetworkPolicy) -> None:
        if policy.secrets:
            raise Unsupported(f"there are no secrets here, and the box is to use {', '.join(policy.secrets)}")

    def needs_files(self, policy: NetworkPolicy) -> bool:
        return bool(policy.secrets)

    async def place(self, box: Box, thread: str | None, policy: NetworkPolicy) -> None:
        """There is nothing to write."""

    def exposed(self, policy: NetworkPolicy) -> tuple[str, ...]:
        return ()


class Egress(Protocol):
    """Connects boxes to the network. Providers receive it; the code that composes them owns it.

    A request for a bare path, sent as to a server rather than a proxy, goes to the guest API. The guest API is open to
    a box under any network policy.

    A provider admits a box when it starts and dismisses it when it stops. Connections to the box's `PROXY_PORT` arrive
    through a listener if the provider can pass descriptors, or else one by one.
    """

    def admit(self, box: str, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Register a box or its new policy. Closes connections that the new policy does not allow."""

    def listen(self, box: str, listener: socket.socket) -> None:
        """Accept a box's connections on a listener. Owns the listener, and closes it when the box is dismissed."""

    def take(self, box: str, connection: socket.socket) -> None:
        """Serve one connection from a box. Owns the connection."""

    def dismiss(self, box: str) -> None:
        """Close the listener and all connections of a box. Does nothing if the box is unknown."""

    def traffic(self, box: str) -> Traffic: ...

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        """Returns the environment variables that point a box's processes to the proxy and this machine's registries."""
