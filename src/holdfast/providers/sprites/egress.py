"""The egress of sprites. A box is admitted while it runs, and its connections come over the guest's stream."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.boxes.network_policy import Egress, Traffic
from holdfast.providers.sprites.records import BoxRecord
from holdfast.providers.stream import StreamGuestClient, serve_egress


class SpriteEgress:
    """Serves all boxes of one provider. It does not own the `egress`.

    With `direct`, sprites have a network of their own: then only the guest API goes this way.
    """

    def __init__(self, egress: Egress, *, direct: bool) -> None:
        self._egress = egress
        self._direct = direct
        self._open: set[str] = set()

    def serves(self, id: str) -> bool:
        return id in self._open

    def wanted(self, policy: NetworkPolicy) -> bool:
        """Returns whether a box of this policy has an egress from its start."""
        return policy.mode is not Network.NONE and not self._direct

    async def open(self, guest: StreamGuestClient, record: BoxRecord) -> None:
        """Admit a running box, or change its policy. Does nothing for a box that may reach nothing."""
        if record.id in self._open or self.wanted(record.spec.network):
            await self.open_guest_api(guest, record)

    async def open_guest_api(self, guest: StreamGuestClient, record: BoxRecord) -> None:
        """Admit a running box, whatever its policy allows."""
        policy = NetworkPolicy() if self._direct else record.spec.network
        self._egress.admit(record.id, policy, record.labels)
        if record.id in self._open:
            return
        self._open.add(record.id)
        try:
            await serve_egress(guest, self._egress)
        except BaseException:
            self.close(record.id)
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
