"""Boxes that are containers of a Docker daemon. Needs the extra `docker`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.providers.docker.engine import DEFAULT_ADDRESS, DockerHost
    from holdfast.providers.docker.provider import DockerProvider

__all__ = ["DEFAULT_ADDRESS", "DockerHost", "DockerProvider"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: the descriptor beside it is read by every command that lists providers."""
    if name in __all__:
        from holdfast.providers.docker import engine, provider

        return getattr(provider if name == "DockerProvider" else engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
