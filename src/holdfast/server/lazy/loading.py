"""Loads modules in a thread, and lets the garbage collector look at none of them again.

What is loaded stays. A full collection would go through all of it each time, a tenth of a second in which a server
answers nobody.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Final, TypeVar

Loaded = TypeVar("Loaded")

_under_way: Final[set[object]] = set()


async def load_in_thread(load: Callable[[], Loaded]) -> Loaded:
    """What `load` gives, while others go on. The collector rests meanwhile."""
    mark = object()
    _under_way.add(mark)
    gc.disable()
    try:
        return await asyncio.to_thread(load)
    finally:
        _under_way.discard(mark)
        if not _under_way:
            gc.freeze()
            gc.enable()
