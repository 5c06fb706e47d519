"""Boxes that are Sprites of Fly.io: virtual machines with a disk of their own, which sleep while nothing uses them."""

from __future__ import annotations

from holdfast.providers.sprites.account import Account
from holdfast.providers.sprites.provider import SpritesProvider

__all__ = ["Account", "SpritesProvider"]
