"""An idempotent producer: numbers the requests of one writer, so that the server takes each of them once.

After a request whose fate is unknown the count cannot go on: the server may or may not have it. Then a new epoch
begins, which also shuts out what is left of the old one on its way.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio

from holdfast.api.errors.threads import StaleEpoch


class Producer:
    """One writer of one stream. Its requests go one after the other."""

    def __init__(self, id: str | None = None) -> None:
        self.id = id or f"p-{secrets.token_hex(12)}"
        self.epoch = 0
        self.seq = 0
        self._turn = anyio.Lock()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[Mapping[str, str]]:
        """The headers of the next request; leaving without an error means that it was acknowledged."""
        async with self.turn(), self.numbered() as headers:
            yield headers

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for the requests before, and keep those of other tasks away: for several that belong together."""
        async with self._turn:
            yield

    @asynccontextmanager
    async def numbered(self) -> AsyncIterator[Mapping[str, str]]:
        """As `request`, for whoever has the turn."""
        try:
            yield {
                "producer-id": self.id,
                "producer-epoch": str(self.epoch),
                "producer-seq": str(self.seq),
            }
        except StaleEpoch:
            raise  # a newer producer has this id: ours must not climb over it
        except BaseException:
            self.epoch += 1
            self.seq = 0
            raise
        self.seq += 1
