"""The body of an agent's request: streamed to the first model, and kept while another one may be asked instead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

import orjson

from holdfast.egress.models.exchange import Exchange

_MOST_KEPT: Final = 16 * 1024 * 1024
_MOST_KEPT_OF_ALL: Final = 256 * 1024 * 1024
_LARGE: Final = 256 * 1024
"""Bytes of JSON that are parsed in a thread, because everybody else would wait."""


@dataclass(slots=True)
class Kept:
    """Bytes that are kept for all requests together."""

    size: int = 0


class RequestBody:
    """Used by one request. `close` frees what is kept."""

    def __init__(self, exchange: Exchange, kept: Kept, *, keep: bool) -> None:
        """With `keep`, the body can be sent again to another model, unless it is too large or compressed."""
        self.can_repeat = keep and not exchange.is_compressed
        self._exchange = exchange
        self._source = exchange.body()
        self._all_kept = kept
        self._pieces: list[bytes] = []
        self._size = 0

    async def stream(self) -> AsyncGenerator[bytes]:
        """Yields the body as it arrives, unchanged. Only for the first request."""
        async for piece in self._source:
            self._keep(piece)
            yield piece

    async def for_model(self, model: str) -> bytes | None:
        """Returns the whole body for another model, or None if that cannot be made of it."""
        async for piece in self._source:  # what the first provider did not wait for
            self._keep(piece)
        if not self.can_repeat:
            return None
        body = b"".join(self._pieces)
        return await asyncio.to_thread(_renamed, body, model) if len(body) > _LARGE else _renamed(body, model)

    async def close(self) -> None:
        self._drop()
        await self._source.aclose()
        self._exchange.has_read()

    def _keep(self, piece: bytes) -> None:
        if not self.can_repeat:
            return
        if self._size + len(piece) > _MOST_KEPT or self._all_kept.size + len(piece) > _MOST_KEPT_OF_ALL:
            self.can_repeat = False
            self._drop()
            return
        self._pieces.append(piece)
        self._size += len(piece)
        self._all_kept.size += len(piece)

    def _drop(self) -> None:
        self._pieces.clear()
        self._all_kept.size -= self._size
        self._size = 0


def _renamed(body: bytes, model: str) -> bytes | None:
    """Returns the request with another model in it."""
    try:
        request = orjson.loads(body)
    except ValueError:
        return None
    return orjson.dumps({**request, "model": model}) if isinstance(request, dict) else None
