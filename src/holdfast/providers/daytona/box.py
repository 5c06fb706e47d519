"""A box at Daytona. Its guest is reached over a stream, and the Daytona API controls its lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.api.box.box import BoxInfo, Power, Wake
from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.records import Preview
from holdfast.providers.guest_box import ResourceUsage, check_port
from holdfast.providers.stream import StreamBox

if TYPE_CHECKING:
    from holdfast.providers.daytona.provider import DaytonaProvider


class DaytonaBox(StreamBox):
    def __init__(
        self, provider: DaytonaProvider, info: BoxInfo, environment: Mapping[str, str], wake: Wake | None = None
    ) -> None:
        """`environment` is that of commands in the sandbox."""
        self._provider = provider
        self._of_sandbox = {"LANG": "C.UTF-8", "TERM": "dumb", **environment}
        whole = {**self._of_sandbox, **provider.egress_environment(info.spec.network)}
        super().__init__(info, provider, provider.guest(info.id), wake, environment=whole)

    async def power(self) -> Power:
        return await self._provider.power(self.id)

    async def set_network(self, policy: NetworkPolicy) -> None:
        await super().set_network(policy)
        self.environment = {**self._of_sandbox, **self._provider.egress_environment(policy)}

    async def preview(self, port: int) -> Preview:
        """Returns the address of a port at Daytona, with the header that opens it."""
        check_port(port)
        return await self._provider.preview(self.id, port)

    async def signed_preview(self, port: int, seconds: int = 3600) -> Preview:
        """Returns an address that needs no header, for so long: whoever has it may visit the port."""
        check_port(port)
        return await self._provider.preview(self.id, port, seconds)

    async def usage(self) -> ResourceUsage:
        sent, received = self._provider.traffic(self.id)
        return ResourceUsage(sent=sent, received=received)
