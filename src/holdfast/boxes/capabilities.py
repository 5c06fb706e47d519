"""What a provider can do. A request that needs a missing capability fails before anything is created."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from holdfast.api.box.network import Network
from holdfast.api.box.spec import BoxSpec, OnIdle
from holdfast.api.errors.boxes import Unsupported


class Capability(StrEnum):
    ISOLATION = "isolation"
    """The box cannot see or touch its host."""
    STOP = "stop"
    """Boxes can be stopped and started, and keep their files."""
    SNAPSHOTS = "snapshots"
    FORK = "fork"
    EXPORT = "export"
    """Snapshots can be exported as a stream and imported elsewhere."""
    VOLUMES = "volumes"
    HOST_MOUNTS = "host-mounts"
    IMAGES = "images"
    CPU_LIMIT = "cpu-limit"
    MEMORY_LIMIT = "memory-limit"
    DISK_LIMIT = "disk-limit"
    PIDS_LIMIT = "pids-limit"
    NETWORK_NONE = "network-none"
    NETWORK_ALLOW = "network-allow"
    NETWORK_OPEN = "network-open"
    NETWORK_LIVE = "network-live"
    """The network policy of a running box can be changed."""
    SECRETS = "secrets"
    """All traffic of a box goes through the egress proxy, which can put secrets into its requests."""
    PAUSE = "pause"
    """Processes can be frozen. Starting a paused box resumes them."""
    POOL = "pool"
    """A box can be created ahead of time and handed over as new."""
    PTY = "pty"
    DETACHED = "detached"
    """Spawned processes and their output outlive the process that spawned them."""
    CONNECT = "connect"
    PREVIEW = "preview"


_NETWORKS = {
    Network.NONE: Capability.NETWORK_NONE,
    Network.ALLOW: Capability.NETWORK_ALLOW,
    Network.OPEN: Capability.NETWORK_OPEN,
}


def needed(spec: BoxSpec) -> list[Capability]:
    """Returns the capabilities that a box of this spec needs."""
    wanted = {
        Capability.IMAGES: spec.image is not None,
        Capability.CPU_LIMIT: spec.cpu is not None,
        Capability.MEMORY_LIMIT: spec.memory is not None,
        Capability.DISK_LIMIT: spec.disk is not None,
        Capability.PIDS_LIMIT: spec.pids is not None,
        Capability.VOLUMES: bool(spec.volumes),
        Capability.HOST_MOUNTS: bool(spec.mounts),
        Capability.SECRETS: bool(spec.network.secrets),
        _NETWORKS[spec.network.mode]: True,
        Capability.PAUSE: spec.when_idle is OnIdle.PAUSE,
        Capability.STOP: spec.when_idle is OnIdle.HIBERNATE,
    }
    return [capability for capability, asked in wanted.items() if asked]


def require(provider: str, has: Collection[Capability], *wanted: Capability) -> None:
    """Raises `Unsupported` for the first missing capability."""
    for capability in wanted:
        if capability not in has:
            raise unsupported(provider, capability)


def unsupported(provider: str, capability: Capability) -> Unsupported:
    return Unsupported(
        f"provider {provider} does not support {capability.value}",
        hint=f"leave it out of the request, or use a provider that supports {capability.value}",
    )
