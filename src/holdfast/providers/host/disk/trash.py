"""Deletes the contents of the trash without blocking for long: a box can have millions of files.

A deletion blocks for a few seconds. The rest is deleted in the background, a few seconds at a time, so that a process
can end soon. The next sweep deletes what is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from holdfast.providers.host.disk import layers
from holdfast.providers.host.disk.data_dir import DataDir
from holdfast.providers.host.sandbox import Workers

SECONDS: Final = 3.0
"""How long a removal may block."""


class Trash:
    def __init__(self, data_dir: DataDir, workers: Workers) -> None:
        self._data_dir = data_dir
        self._workers = workers
        self._clearing = asyncio.Lock()

    async def discard(self, path: Path) -> int:
        """Move a path into the trash and delete it there. Returns the bytes freed until now."""
        moved = self._data_dir.discard(path)
        return await self.remove([moved] if moved else [])

    async def remove(self, moved: Sequence[Path]) -> int:
        """Delete paths that are in the trash. Returns the bytes freed until now."""
        if not moved:
            return 0
        emptied = await self._workers.on_disk(self._data_dir.empty, moved, SECONDS)
        if not emptied.finished:
            self._workers.in_background(self.clear())
        return emptied.freed

    async def clear(self) -> int:
        """Delete everything in the trash, unless another task is doing that. Returns the bytes freed."""
        if self._clearing.locked():
            return 0
        async with self._clearing:
            freed = 0
            while True:
                emptied = await self._workers.on_disk(layers.clear_trash, self._data_dir, SECONDS)
                freed += emptied.freed
                if emptied.finished:
                    return freed
