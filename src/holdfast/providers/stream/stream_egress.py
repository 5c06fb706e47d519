"""The egress of all boxes of a provider that are reached over streams: who is admitted, and since when."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.boxes.network_policy import Egress, Traffic
from holdfast.providers.stream.egress import serve_egress
from holdfast.providers.stream.guest_client import StreamGuestClient


class StreamEgress:
    """The caller owns the `egress`."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._open: set[str] = set()

    def knows(self, id: str) -> bool:
        return id in self._open

    async def open(self, guest: StreamGuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Admit a running box, or its new policy. A box that may reach nothing is left alone."""
        if guest.box in self._open or policy.mode is not Network.NONE:
            await self.open_guest_api(guest, policy, labels)

    async def open_guest_api(self, guest: StreamGuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Admit a running box, even one that may reach nothing but the guest API."""
        self._egress.admit(guest.box, policy, labels)
        if guest.box in self._open:
            return
        self._open.add(guest.box)
        try:
            await serve_egress(guest, self._egress)
        except BaseException:
            self.close(guest.box)
            raise

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        return self._egress.environment(policy)

    def traffic(self, id: str) -> Traffic:
        return self._egress.traffic(id)

    def close(self, id: str) -> None:
        if id in self._open:
            self._open.discard(id)
            self._egress.dismiss(id)

    def close_all(self) -> None:
        for id in list(self._open):
            self.close(id)
