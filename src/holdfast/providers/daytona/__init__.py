"""Boxes that are sandboxes at Daytona, or at a server with its API. Needs the extra `daytona`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.providers.daytona.account import Account
    from holdfast.providers.daytona.provider import DaytonaProvider

__all__ = ["Account", "DaytonaProvider"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: the descriptor beside it is read by every command that lists providers."""
    if name == "Account":
        from holdfast.providers.daytona.account import Account

        return Account
    if name == "DaytonaProvider":
        from holdfast.providers.daytona.provider import DaytonaProvider

        return DaytonaProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
