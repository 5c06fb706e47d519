"""The egress of all boxes of a provider that are reached over streams: who is admitted, and since when."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import Unsupported
from holdfast.boxes.network_policy import Egress, Traffic
from holdfast.providers.stream.egress import serve_egress
from holdfast.providers.stream.guest_client import StreamGuestClient


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
