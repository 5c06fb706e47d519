"""Changes the network policy of a box, running or stopped. The egress enforces the policy."""

from __future__ import annotations

from dataclasses import replace

from holdfast.api.box.network import NetworkPolicy
from holdfast.api.box.spec import BoxSpec
from holdfast.boxes.capabilities import Capability, needed, require
from holdfast.boxes.rows import BoxRow
from holdfast.boxes.service.leases import Leases
from holdfast.boxes.service.providers import Providers
from holdfast.boxes.service.registry import Registry


class NetworkUpdate:
    """Changes network policies for one service."""

    def __init__(self, registry: Registry, providers: Providers, leases: Leases) -> None:
        self._registry = registry
        self._providers = providers
        self._leases = leases

    async def set(self, id: str, policy: NetworkPolicy) -> BoxRow:
        """Change the policy. If the process dies between the box and its row, calling again updates both."""
        policy.check()
        async with self._leases.alone(f"box/{id}"):
            row = await self._registry.get_live(id)
            self._registry.check_here(row)
            provider = self._providers.of(row)
            wanted = needed(BoxSpec(provider=row.provider, network=policy))
            require(provider.name, provider.capabilities, Capability.NETWORK_LIVE, *wanted)
            await self._registry.join()
            async with await provider.attach(row.id) as box:
                await box.set_network(policy)
            return await self._registry.swap(
                row, lambda current: replace(current, spec=replace(current.spec, network=policy))
            )
