"""The contract of a store of shares. It holds digests of their links."""

from __future__ import annotations

from typing import Protocol

from holdfast.api.access.shares import ShareRecord


class ShareStore(Protocol):
    async def add(self, share: ShareRecord, digest: bytes, stream: int) -> None:
        """`stream` tells the thread from another one that has its id later."""
        ...

    async def find(self, digest: bytes) -> tuple[ShareRecord, int] | None:
        """Returns a share that was not revoked, with its stream. It may have expired."""
        ...

    async def list(self, thread: str) -> list[ShareRecord]:
        """Returns the shares of a thread, oldest first."""
        ...

    async def remove(self, thread: str, id: str) -> bool: ...

    async def remove_expired(self, now: int) -> int: ...
