"""Gates: hold back the requests to a box while its guest is restarted, so that nobody notices the restart.

Within one process. A request that is past the gate has been sent, and the guest counts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from holdfast.time_limit import time_limit

_SECONDS: Final = 30.0
"""After this time, a request is sent even so, and fails if there is no guest."""


class Gates:
    """The gates of all boxes of one provider. They are open unless a restart closes one."""

    def __init__(self) -> None:
        self._closed: dict[str, asyncio.Event] = {}

    def is_closed(self, box: str) -> bool:
        return box in self._closed

    @contextmanager
    def closed(self, box: str) -> Iterator[None]:
        """Close the gate of a locked box."""
        opened = self._closed[box] = asyncio.Event()
        try:
            yield
        finally:
            del self._closed[box]
            opened.set()

    async def passed(self, box: str) -> None:
        """Returns when the gate of a box is open."""
        while (opened := self._closed.get(box)) is not None:
            with suppress(TimeoutError):
                async with time_limit(_SECONDS):
                    await opened.wait()
                    continue
            return
