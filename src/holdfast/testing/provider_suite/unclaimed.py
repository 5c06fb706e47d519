"""Capabilities that a provider does not claim: requests are refused with the name, and create nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from holdfast.api.box.box import Box, Liveness
from holdfast.api.box.network import Network, NetworkPolicy
from holdfast.api.box.spec import BoxSpec, HostMount, OnIdle, VolumeMount
from holdfast.api.errors.boxes import Unsupported
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.provider import Provider
from holdfast.testing.provider_suite.base import BoxFactory, Suite, fresh

_IN_A_SPEC: dict[Capability, dict[str, Any]] = {
    Capability.IMAGES: {"image": "debian:13"},
    Capability.CPU_LIMIT: {"cpu": 1.0},
    Capability.MEMORY_LIMIT: {"memory": 256 << 20},
    Capability.DISK_LIMIT: {"disk": 256 << 20},
    Capability.PIDS_LIMIT: {"pids": 64},
    Capability.VOLUMES: {"volumes": (VolumeMount("any", "/mnt/any"),)},
    Capability.HOST_MOUNTS: {"mounts": (HostMount("/usr", "/mnt/any"),)},
    Capability.NETWORK_NONE: {"network": NetworkPolicy(Network.NONE)},
    Capability.NETWORK_ALLOW: {"network": NetworkPolicy(Network.ALLOW, ("example.org",))},
    Capability.NETWORK_OPEN: {"network": NetworkPolicy(Network.OPEN)},
    Capability.SECRETS: {"network": NetworkPolicy(secrets=("ANY",))},
    Capability.PAUSE: {"on_idle": OnIdle.PAUSE},
}


async def _nothing() -> AsyncIterator[bytes]:
    yield b""


_OF_A_BOX: dict[Capability, Callable[[Box], Awaitable[object]]] = {
    Capability.STOP: lambda box: box.stop(),
    Capability.SNAPSHOTS: lambda box: box.snapshot(),
    Capability.FORK: lambda box: box.fork(),
    Capability.PAUSE: lambda box: box.pause(),
    Capability.PTY: lambda box: box.spawn(["true"], pty=True),
    Capability.CONNECT: lambda box: box.connect(8000),
    Capability.PREVIEW: lambda box: box.preview(8000),
}
_OF_A_PROVIDER: dict[Capability, tuple[Callable[[Provider], Awaitable[object]], ...]] = {
    Capability.EXPORT: (
        lambda provider: anext(provider.export_snapshot("any")),
        lambda provider: provider.import_snapshot(_nothing()),
    ),
    Capability.VOLUMES: (lambda provider: provider.create_volume("any"),),
    Capability.POOL: (lambda provider: provider.hand_over("any", BoxSpec(), labels={}, created_at=0),),
}


class Unclaimed(Suite):
    async def test_a_provider_says_who_it_is(self, provider: Provider) -> None:
        assert provider.name
        assert provider.snapshot_kind or Capability.SNAPSHOTS not in provider.capabilities
        assert provider.capabilities <= frozenset(Capability)
        networks = {Capability.NETWORK_NONE, Capability.NETWORK_ALLOW, Capability.NETWORK_OPEN}
        assert provider.capabilities & networks, "a box has some network policy: at least one has to be claimed"

    async def test_a_spec_that_asks_for_what_is_not_claimed_is_refused_by_name(
        self, provider: Provider, factory: BoxFactory
    ) -> None:
        for capability in sorted(_IN_A_SPEC.keys() - provider.capabilities):
            before = {each.id for each in await provider.find()}
            id = factory.expect(fresh("box"))
            with pytest.raises(Unsupported) as caught:
                await factory.box(id=id, **_IN_A_SPEC[capability])
            assert capability.value in caught.value.message
            assert await provider.probe(id) is Liveness.GONE
            assert id not in {each.id for each in await provider.find()} - before

    async def test_what_a_box_is_not_claimed_to_do_is_refused_by_name(self, provider: Provider, box: Box) -> None:
        for capability in sorted(_OF_A_BOX.keys() - provider.capabilities):
            with pytest.raises(Unsupported) as caught:
                await _OF_A_BOX[capability](box)
            assert capability.value in caught.value.message
            assert (await box.exec(["true"])).ok

    async def test_what_a_provider_does_not_claim_is_refused_by_name(self, provider: Provider) -> None:
        for capability in sorted(_OF_A_PROVIDER.keys() - provider.capabilities):
            for attempt in _OF_A_PROVIDER[capability]:
                with pytest.raises(Unsupported) as caught:
                    await attempt(provider)
                assert capability.value in caught.value.message
