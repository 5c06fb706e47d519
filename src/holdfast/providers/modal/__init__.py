"""Boxes that are sandboxes at Modal. Needs the extra `modal`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.providers.modal.account import Account, Credentials
    from holdfast.providers.modal.provider import ModalProvider

__all__ = ["Account", "Credentials", "ModalProvider"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: the descriptor beside it is read by every command that lists providers."""
    if name in __all__:
        from holdfast.providers.modal import account, provider

        return getattr(provider if name == "ModalProvider" else account, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
