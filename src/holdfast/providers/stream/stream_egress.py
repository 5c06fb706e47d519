"""The egress of all boxes of a provider that are reached over streams: who is admitted, and since when."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.boxes.network_policy import Egress, Traffic
from holdfast.providers.stream.egress import serve_egress
from holdfast.providers.stream.guest_client import StreamGuestClient


class StreamEgress:
    """The caller owns the `egress`.

    With `direct`, boxes have a network of their own, which their provider limits: only the guest API goes this way.
    """

    def __init__(self, egress: Egress, *, direct: bool = False) -> None:
        self._egress = egress
        self._direct = direct
        self._open: set[str] = set()

    def serves(self, id: str) -> bool:
        return id in self._open

    def wanted(self, policy: NetworkPolicy) -> bool:
        """Returns whether a box of this policy has an egress from its start."""
        return policy.mode is not Network.NONE and not self._direct

    async def open(self, guest: StreamGuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Admit a running box, or change its policy. Does nothing for a box that may reach nothing."""
        if guest.box in self._open or self.wanted(policy):
            await self.open_guest_api(guest, policy, labels)

    async def open_guest_api(self, guest: StreamGuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Admit a running box, whatever its policy allows."""
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
        """Serve an admitted box whose client has stopped serving."""
        await serve_egress(guest, self._egress)

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        return self._egress.environment(policy) if self.wanted(policy) else {}

    def traffic(self, id: str) -> Traffic:
        return self._egress.traffic(id)

    def close(self, id: str) -> None:
        if id in self._open:
            self._open.discard(id)
            self._egress.dismiss(id)

    def close_all(self) -> None:
        for id in list(self._open):
            self.close(id)
