"""Boxes that are sandboxes at Modal. Needs the extra `modal`."""

from __future__ import annotations

from holdfast.providers.modal.account import Account, Credentials
from holdfast.providers.modal.provider import ModalProvider

__all__ = ["Account", "Credentials", "ModalProvider"]
