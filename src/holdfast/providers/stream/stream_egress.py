"""The egress of all boxes of a provider that are reached over streams: who is admitted, and since when."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.errors.boxes import BoxConflict, Unsupported
from holdfast.api.guest_url import GuestUrl
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import GUEST_API_URL, Egress, Traffic
from holdfast.providers.stream.egress import serve_egress
from holdfast.providers.stream.guest_client import StreamGuestClient
from holdfast.providers.stream.guest_relay import without_proxy


class StreamEgress:
    """The egress of all boxes of a provider that are reached over streams: which are admitted, and what they use.

    Does not own the `egress`; without one, no box is admitted. With `direct`, boxes have a network of their own, which
    their provider limits, and only the guest API goes this way. With a `relay`, new runs reach the guest API through
    that.
    """

    def __init__(self, egress: Egress | None, *, direct: bool = False, relay: GuestUrl | None = None) -> None:
        self._egress = egress
        self._direct = direct
        self._relay = relay
        self._open: dict[str, StreamGuestClient] = {}

    @property
    def exists(self) -> bool:
        return self._egress is not None

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What boxes can do because all their traffic goes this way."""
        return frozenset({Capability.SECRETS}) if self.exists and not self._direct else frozenset()

    def serves(self, id: str) -> bool:
        """Returns whether an admitted box is served. Serving ends by itself when the box is stopped by others."""
        return id in self._open and self._open[id].serving

    def admits(self, id: str) -> bool:
        return id in self._open

    def wanted(self, policy: NetworkPolicy) -> bool:
        """Returns whether a box of this policy has an egress from its start."""
        return self.exists and not self._direct and policy.mode is not Network.NONE

    async def open(self, guest: StreamGuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        """Admit a running box, or change its policy. Does nothing for a box that may reach nothing."""
        if guest.box in self._open or self.wanted(policy):
            await self._admit(guest, policy, labels)

    async def open_guest_api(self, guest: StreamGuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> str:
        """Admit a running box, whatever its policy allows. Returns the URL of the guest API in the box.

        Raises `Unsupported` if there is no egress.
        """
        try:
            await self._admit(guest, policy, labels)
        except BoxConflict:
            if self._relay is None:
                raise
        # Runs that began before there was a relay still use the stream.
        return GUEST_API_URL if self._relay is None else self._relay.base

    async def _admit(self, guest: StreamGuestClient, policy: NetworkPolicy, labels: Mapping[str, str]) -> None:
        if self._egress is None:
            raise Unsupported(f"box {guest.box} cannot reach Holdfast: its provider was opened without egress")
        self._egress.admit(guest.box, NetworkPolicy() if self._direct else policy, labels)
        if self.serves(guest.box):
            return
        self._open[guest.box] = guest
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
        if self._egress is None or self._direct:
            return {}
        return without_proxy(self._egress.environment(policy), self._relay)

    def traffic(self, id: str) -> Traffic | None:
        return None if self._egress is None else self._egress.traffic(id)

    def close(self, id: str) -> None:
        if self._egress is not None and id in self._open:
            del self._open[id]
            self._egress.dismiss(id)

    def close_all(self) -> None:
        for id in list(self._open):
            self.close(id)
