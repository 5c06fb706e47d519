"""The egress of boxes at Docker: they are admitted while they run, and their connections come over their streams."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.boxes.network_policy import Egress, Traffic
from holdfast.providers.docker.objects import BoxRecord
from holdfast.providers.stream import StreamGuestClient, serve_egress


class ContainerEgress:
    """Connects the boxes of a provider. Without an `egress`, no box has a network. It does not own the `egress`."""

    def __init__(self, egress: Egress | None) -> None:
        self._egress = egress
        self._open: set[str] = set()

    @property
    def serves(self) -> bool:
        return self._egress is not None

    def knows(self, id: str) -> bool:
        return id in self._open

    async def open(self, guest: StreamGuestClient, record: BoxRecord) -> None:
        """Admit a running box, or its new policy. Does nothing if it may reach nothing and was not admitted before."""
        if record.id in self._open or record.spec.network.mode is not Network.NONE:
            await self.open_guest_api(guest, record)

    async def open_guest_api(self, guest: StreamGuestClient, record: BoxRecord) -> None:
        """Admit a running box, even if its policy lets it reach only the guest API."""
        if self._egress is None:
            return
        self._egress.admit(record.id, record.spec.network, record.labels)
        if record.id in self._open:
            return
        self._open.add(record.id)
        try:
            await serve_egress(guest, self._egress)
        except BaseException:
            self.close(record.id)
            raise

    def environment(self, policy: NetworkPolicy) -> Mapping[str, str]:
        return {} if self._egress is None else self._egress.environment(policy)

    def traffic(self, id: str) -> Traffic | None:
        return None if self._egress is None else self._egress.traffic(id)

    def close(self, id: str) -> None:
        if self._egress is not None and id in self._open:
            self._open.discard(id)
            self._egress.dismiss(id)

    def close_all(self) -> None:
        for id in list(self._open):
            self.close(id)
