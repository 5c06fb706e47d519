"""Which providers there are, each loaded only where it is opened. A new one is one module and one line here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.boxes.errors import BoxError, CannotIsolate
from holdfast.boxes.network_policy import Egress
from holdfast.boxes.provider import Provider
from holdfast.providers.unusable import AbsentProvider, UnusableProvider

log = logging.getLogger(__name__)

_DOCKER_SOCKET: Final = "/var/run/docker.sock"

Maker = Callable[[Path, Egress | None], Provider]
"""Makes the provider of a home; what leaves its boxes goes through the egress."""


def _local(box_disk: int | None) -> Maker:
    def make(home: Path, egress: Egress | None) -> Provider:
        from holdfast.providers.local import LocalProvider

        return LocalProvider(home, egress=egress, box_disk=box_disk)

    return make


def _process(home: Path, egress: Egress | None) -> Provider:
    from holdfast.providers.process import ProcessProvider

    return ProcessProvider(home / "process", tools=home / "tools")


@dataclass(frozen=True, slots=True)
class DockerSettings:
    """Which Docker daemon, and how its boxes run."""

    host: str | None = None
    """None: the machine's own, if there is one."""
    tls: Path | None = None
    runtime: str | None = None
    image: str | None = None
    """Of boxes that ask for none."""


def _docker(settings: DockerSettings) -> Maker:
    def make(home: Path, egress: Egress | None) -> Provider:
        if settings.host is None and not Path(_DOCKER_SOCKET).exists():
            error = CannotIsolate(
                f"there is no Docker daemon at {_DOCKER_SOCKET}",
                hint="start Docker, or say where it is with holdfast up --docker-host, and start the server again",
            )
            return AbsentProvider("docker", error)
        try:
            from holdfast.providers.docker import DockerHost, DockerProvider, namespace_of
        except ImportError as error:
            raise CannotIsolate(
                f"boxes at Docker need what is not installed here: {error}", hint="pip install 'holdfast[docker]'"
            ) from None
        return DockerProvider(
            DockerHost(settings.host or f"unix://{_DOCKER_SOCKET}", settings.tls),
            namespace=namespace_of(home),
            runtime=settings.runtime,
            image=settings.image,
            egress=egress,
        )

    return make


def known_providers(
    *, allow_process: bool, docker: DockerSettings | None = None, box_disk: int | None = None
) -> dict[str, Maker]:
    """Makers of providers, by name."""
    makers: dict[str, Maker] = {"local": _local(box_disk), "docker": _docker(docker or DockerSettings())}
    if allow_process:
        makers["process"] = _process
    return makers


async def open_providers(
    home: Path,
    *,
    egress: Egress | None = None,
    allow_process: bool = False,
    docker: DockerSettings | None = None,
    box_disk: int | None = None,
) -> Mapping[str, Provider]:
    """All providers of a home, opened; the caller closes them. The process provider says what it is when it opens.

    One that cannot work on this machine is there all the same: it answers everything with the reason. Without an
    `egress` no box has a network. `box_disk` bounds local boxes whose spec has no limit of the disk.
    """
    opened: dict[str, Provider] = {}
    try:
        for name, make in known_providers(allow_process=allow_process, docker=docker, box_disk=box_disk).items():
            opened[name] = await _open(name, make, home, egress)
    except BaseException:
        for provider in opened.values():
            await provider.close()
        raise
    return opened


async def _open(name: str, make: Maker, home: Path, egress: Egress | None) -> Provider:
    try:
        # On a thread: to load a provider takes so long that nobody else should wait for it.
        provider = await asyncio.to_thread(make, home, egress)
        await provider.open()
    except BoxError as error:
        log.warning("provider %s cannot be used here: %s", name, error.message)
        return UnusableProvider(name, error)
    return provider
