"""Deletes the contents of the trash without blocking for long: a box can have millions of files.

A deletion blocks for a few seconds. The rest is deleted in the background, a few seconds at a time, so that a process
can end soon. The next sweep deletes what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.providers.host import layers
from holdfast.providers.host.data_dir import DataDir, Emptied

SECONDS: Final = 3.0
"""How long a removal may take at a time."""

OnDisk = Callable[..., Awaitable[Emptied]]
"""Runs what blocks on a thread."""
InBackground = Callable[[Coroutine[Any, Any, Any]], None]


class Trash:
    def __init__(self, data_dir: DataDir, on_disk: OnDisk, in_background: InBackground) -> None:
        self._data_dir = data_dir
        self._on_disk = on_disk
        self._in_background = in_background
        self._clearing = asyncio.Lock()

    async def remove(self, moved: Sequence[Path]) -> int:
        """Remove what is in the trash. Returns the bytes freed until now."""
        if not moved:
            return 0
        emptied = await self._on_disk(self._data_dir.empty, moved, SECONDS)
        if not emptied.finished:
            self._in_background(self.clear())
        return emptied.freed

    async def clear(self) -> int:
        """Remove all that is in the trash, unless another task does. Returns the bytes that this freed."""
        if self._clearing.locked():
            return 0
        async with self._clearing:
            freed = 0
            while True:
                emptied = await self._on_disk(layers.clear_trash, self._data_dir, SECONDS)
                freed += emptied.freed
                if emptied.finished:
                    return freed
