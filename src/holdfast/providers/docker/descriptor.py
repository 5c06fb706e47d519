"""Describes the Docker provider: its settings, its checks and how to create it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from holdfast.providers.descriptor import ProviderDescriptor, Setting, SettingKind

if TYPE_CHECKING:
    from holdfast.boxes.network_policy import Egress
    from holdfast.boxes.provider import Provider
    from holdfast.providers.check_result import CheckResult

_SOCKET: Final = "/var/run/docker.sock"


def _make(home: Path, egress: Egress | None, settings: Mapping[str, Any]) -> Provider:
    address, tls = settings["docker_host"], settings["docker_tls"]
    if address is None and not Path(_SOCKET).exists():
        from holdfast.api.errors.boxes import CannotIsolate
        from holdfast.providers.unavailable import AbsentProvider

        error = CannotIsolate(
            f"there is no Docker daemon at {_SOCKET}",
            hint="start Docker, or name its address with holdfast up --docker-host, and restart the server",
        )
        return AbsentProvider("docker", error)
    from holdfast.providers.docker.engine import DockerHost
    from holdfast.providers.docker.namespace import namespace_of
    from holdfast.providers.docker.provider import DockerProvider

    return DockerProvider(
        DockerHost(address or f"unix://{_SOCKET}", None if tls is None else Path(tls)),
        namespace=namespace_of(home),
        runtime=settings["docker_runtime"],
        image=settings["docker_image"],
        egress=egress,
    )


def _examine(home: Path) -> Iterator[CheckResult]:
    from holdfast.providers.docker.checks import examine

    yield from examine()


DOCKER: Final = ProviderDescriptor(
    "docker",
    _make,
    settings=(
        Setting(
            "docker_host",
            "Docker daemon for boxes: unix:///path, tcp://host:port or https://host:port.",
            metavar="ADDRESS",
            variable="DOCKER_HOST",
        ),
        Setting("docker_tls", "Certificates for it: ca.pem, cert.pem, key.pem.", SettingKind.FOLDER, metavar="DIR"),
        Setting("docker_runtime", "Its runtime for boxes: runc, runsc, kata.", metavar="NAME"),
        Setting("docker_image", "Image of boxes at Docker that ask for none.", metavar="NAME"),
    ),
    examine=_examine,
)
