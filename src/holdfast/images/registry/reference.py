"""Names of images in registries, by the rules that users of Docker know. Pure.

`debian` is `docker.io/library/debian:latest`, `team/app:1` is `docker.io/team/app:1`, and a first part with a dot, a
port or the word `localhost` is the host of a registry.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from holdfast.api.errors.boxes import InvalidSpec
from holdfast.boxes.images import local_name

DOCKER_HUB: Final = "docker.io"
_HUB_NAMES: Final = ("docker.io", "index.docker.io", "registry-1.docker.io")
_HUB_HOST: Final = "registry-1.docker.io"
_OFFICIAL: Final = "library"
_HOST: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*(:[0-9]{1,5})?")
_PATH: Final = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST: Final = 255
_HINT: Final = "for example debian:12, ghcr.io/team/app:1 or localhost:5000/app@sha256:…"


@dataclass(frozen=True, slots=True)
class Reference:
    """One image in one registry."""

    registry: str
    """The host with its port, as users write it: `docker.io`, `localhost:5000`."""
    repository: str
    tag: str | None
    """None if only a digest is given."""
    digest: str | None = None

    @property
    def host(self) -> str:
        """Returns the host to connect to."""
        return _HUB_HOST if self.registry == DOCKER_HUB else self.registry

    @property
    def version(self) -> str:
        """Returns what is requested from the registry: the digest if there is one, else the tag."""
        return self.digest or self.tag or "latest"

    @property
    def local_name(self) -> str:
        """Returns the name of the image here after it is pulled."""
        tag = f":{self.tag}" if self.tag else ""
        pinned = f"@{self.digest}" if self.digest else ""
        return local_name(f"{self.registry}/{self.repository}{tag if not pinned else ''}{pinned}")

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """Raises `InvalidSpec` for a name that no registry can have."""
    name, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise InvalidSpec(f"{text[:300]!r} has no sha256 digest after the @", hint=_HINT)
    first, slash, rest = name.partition("/")
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, path = (first.lower(), rest) if has_host else (DOCKER_HUB, name)
    registry = DOCKER_HUB if registry in _HUB_NAMES else registry
    path, colon, tag = path.partition(":")
    if registry == DOCKER_HUB and "/" not in path:
        path = f"{_OFFICIAL}/{path}"
    plain = _HOST.fullmatch(registry) and _PATH.fullmatch(path) and len(registry) + len(path) < _LONGEST
    if not plain or (colon and not _TAG.fullmatch(tag)) or not _is_port(registry):
        raise InvalidSpec(f"{text[:300]!r} does not name an image in a registry", hint=_HINT)
    return Reference(registry, path, (tag or None) if at else tag or "latest", digest or None)


def is_loopback(host: str) -> bool:
    """Returns whether a registry is on this machine: then plain HTTP is allowed."""
    name = urlsplit(f"//{host}").hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _is_port(registry: str) -> bool:
    _, colon, port = registry.partition(":")
    return not colon or 0 < int(port) < 1 << 16
