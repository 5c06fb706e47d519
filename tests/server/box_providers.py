"""Providers for servers under test: the dummy, standing where an installation has its local boxes."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.api.errors.boxes import CannotIsolate
from holdfast.boxes.capabilities import Capability
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider
from holdfast.providers.unavailable import UnavailableProvider
from holdfast.server.config import Settings
from holdfast.testing.dummy import CAPABILITIES, DummyProvider


async def dummies(settings: Settings, egress: Egress) -> Mapping[str, Provider]:
    local = DummyProvider(settings.home / "dummy", name="local")
    await local.open()
    return {"local": local}


async def here_and_there(settings: Settings, egress: Egress) -> Mapping[str, Provider]:
    """Two that can do the same, and one that cannot close the network of its boxes."""
    found: dict[str, Provider] = {}
    for name, can in (
        ("here", CAPABILITIES | {Capability.IMAGES}),
        ("there", CAPABILITIES | {Capability.IMAGES}),
        ("less", CAPABILITIES - {Capability.NETWORK_NONE}),
    ):
        found[name] = provider = DummyProvider(settings.home / name, name=name, capabilities=can)
        await provider.open()
    return found


async def nothing_works(settings: Settings, egress: Egress) -> Mapping[str, Provider]:
    return {"local": UnavailableProvider("local", CannotIsolate("no user namespaces here", hint="sysctl something"))}
