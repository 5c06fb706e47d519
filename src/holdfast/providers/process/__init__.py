"""The process provider: boxes on this machine **without isolation**, for development where sandboxes do not work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.providers.process.provider import ProcessProvider

__all__ = ["ProcessProvider"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: the descriptor beside it is read by every command that lists providers."""
    if name in __all__:
        from holdfast.providers.process import provider

        return getattr(provider, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
