"""A box at Modal. Its guest is reached over a stream; the provider controls its lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.api.box.box import BoxInfo, Power, Wake
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.records import Preview
from holdfast.providers.guest_box import ResourceUsage, check_port
from holdfast.providers.stream import StreamBox

if TYPE_CHECKING:
    from holdfast.providers.modal.provider import ModalProvider


class ModalBox(StreamBox):
    def __init__(
        self, provider: ModalProvider, info: BoxInfo, environment: Mapping[str, str], wake: Wake | None = None
    ) -> None:
        """`environment` is that of the sandbox."""
        whole = {**environment, **provider.egress_environment(info.spec.network)}
        super().__init__(info, provider, provider.guest(info.id), wake, environment=whole)
        self._provider = provider
        self._of_sandbox = environment

    async def power(self) -> Power:
        return await self._provider.power(self.id)

    async def set_network(self, policy: NetworkPolicy) -> None:
        await super().set_network(policy)
        self.environment = {**self._of_sandbox, **self._provider.egress_environment(policy)}

    async def preview(self, port: int) -> Preview:
        check_port(port)
        return Preview(await self._provider.tunnel_url(self.id, port))

    async def usage(self) -> ResourceUsage:
        sent, received = self._provider.traffic(self.id)
        return ResourceUsage(sent=sent, received=received)

    async def disk(self) -> int | None:
        return await self._provider.measure(self.id)
