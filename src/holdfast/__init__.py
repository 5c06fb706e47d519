"""Holdfast runs coding agents and Python interpreters inside sandboxes, on durable threads.

Everything public is listed here, and loaded on first use so that `import holdfast` stays instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.api.thread.entries import Entry
    from holdfast.client import Client, SyncClient
    from holdfast.interpreter.interpreter import Interpreter
    from holdfast.interpreter.sync import SyncInterpreter

__version__ = "0.1.0"

__all__ = ["Client", "Entry", "Interpreter", "SyncClient", "SyncInterpreter", "__version__"]

_HOMES = {
    "Client": "holdfast.client",
    "SyncClient": "holdfast.client",
    "Entry": "holdfast.api.thread.entries",
    "Interpreter": "holdfast.interpreter.interpreter",
    "SyncInterpreter": "holdfast.interpreter.sync",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
