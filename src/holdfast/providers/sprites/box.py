"""A box that is a sprite. Its guest is reached over a stream, and the Sprites API controls its lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.api.box.box import BoxInfo, Power, Wake
from holdfast.api.box.network import NetworkPolicy
from holdfast.providers.guest_box import ResourceUsage
from holdfast.providers.sprites.guest_setup import MARK
from holdfast.providers.stream import StreamBox

if TYPE_CHECKING:
    from holdfast.providers.sprites.provider import SpritesProvider


class SpriteBox(StreamBox):
    def __init__(
        self, provider: SpritesProvider, info: BoxInfo, environment: Mapping[str, str], wake: Wake | None = None
    ) -> None:
        """`environment` is that of commands in the sprite."""
        self._provider = provider
        self._of_sprite = {"LANG": "C.UTF-8", "TERM": "dumb", **environment, "HOLDFAST_BOX": info.id, MARK: info.id}
        whole = {**self._of_sprite, **provider.egress_environment(info.spec.network)}
        super().__init__(info, provider, provider.guest(info.id), wake, environment=whole)

    async def power(self) -> Power:
        return await self._provider.power(self.id)

    async def set_network(self, policy: NetworkPolicy) -> None:
        await super().set_network(policy)
        self.environment = {**self._of_sprite, **self._provider.egress_environment(policy)}

    async def _ask_activity(self) -> Mapping[str, Any]:
        quiet = self._provider.quiet(self.id)
        return await super()._ask_activity() if quiet is None else quiet.activity_now()

    async def usage(self) -> ResourceUsage:
        sent, received = self._provider.traffic(self.id)
        return ResourceUsage(sent=sent, received=received)
