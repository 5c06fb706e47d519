"""Boxes that are containers of a Docker daemon. Needs the extra `docker`."""

from __future__ import annotations

from holdfast.providers.docker.engine import DEFAULT_ADDRESS, DockerHost
from holdfast.providers.docker.namespace import namespace_of
from holdfast.providers.docker.provider import DockerProvider

__all__ = ["DEFAULT_ADDRESS", "DockerHost", "DockerProvider", "namespace_of"]
