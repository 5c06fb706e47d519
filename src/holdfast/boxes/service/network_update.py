"""Changing what a box may reach, while it runs or before it starts again. What is allowed is the egress's to say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.network_policy import NetworkPolicy
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.spec import BoxSpec

if TYPE_CHECKING:
    from holdfast.boxes.service.boxes import Boxes


class NetworkUpdate:
    """The networks of the boxes of one service."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def set(self, id: str, policy: NetworkPolicy) -> BoxRow:
        """What a box may reach from now on. Where we die between the box and its row, asking again makes both right."""
        policy.check()
        async with self._boxes.leases.alone(f"box/{id}"):
            row = await self._boxes.live(id)
            self._boxes.here(row)
            provider = self._boxes.provider(row.provider)
            wanted = needed(BoxSpec(provider=row.provider, network=policy))
            require(provider.name, provider.capabilities, Capability.NETWORK_LIVE, *wanted)
            await self._boxes.join()
            async with await provider.attach(row.id) as box:
                await box.set_network(policy)
            return await self._boxes.swap(
                row, lambda current: replace(current, spec=replace(current.spec, network=policy))
            )
