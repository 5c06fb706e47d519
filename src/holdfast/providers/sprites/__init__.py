"""Boxes that are Sprites of Fly.io: virtual machines with a disk of their own, which sleep while nothing uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.providers.sprites.account import Account
    from holdfast.providers.sprites.provider import SpritesProvider

__all__ = ["Account", "SpritesProvider"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: the descriptor beside it is read by every server and every command that lists providers."""
    if name in __all__:
        from holdfast.providers.sprites import account, provider

        return getattr(provider if name == "SpritesProvider" else account, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
