"""How a suite opens the store that it tests."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final, TypeVar

Store = TypeVar("Store")

OpenStore = Callable[[str], AbstractAsyncContextManager[Store]]
"""Opens the store of a tenant on the same data each time, and closes it at the end of its block."""

TENANT: Final = "default"
OTHER_TENANT: Final = "other"
