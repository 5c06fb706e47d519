"""The local provider: boxes on this machine, confined by bubblewrap. They start fast and outlive the server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: the descriptor beside it is read by every command that lists providers."""
    if name in __all__:
        from holdfast.providers.local import provider

        return getattr(provider, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
