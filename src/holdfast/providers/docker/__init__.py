"""Boxes that are containers of a Docker daemon. Needs the extra `docker`."""

from __future__ import annotations

from holdfast.providers.docker.engine import DEFAULT_ADDRESS, DockerHost
from holdfast.providers.docker.provider import DockerProvider, ground_of

__all__ = ["DEFAULT_ADDRESS", "DockerHost", "DockerProvider", "ground_of"]
