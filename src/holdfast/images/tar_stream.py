"""Writes tar archives piece by piece, without a file: headers, contents and padding."""

from __future__ import annotations

import asyncio
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

_BLOCK: Final = 512
_PIECE: Final = 1 << 18
END: Final = b"\0" * (2 * _BLOCK)


def header(
    name: str, size: int = 0, *, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, modified: int = 0, link: str = ""
) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.mtime, entry.size, entry.linkname = kind, mode & 0o7777, max(0, modified), size, link
    return entry.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    return b"\0" * (-size % _BLOCK)


def whole(name: str, data: bytes, mode: int = 0o644) -> bytes:
    """Returns a small file."""
    return header(name, len(data), mode=mode) + data + padding(len(data))


async def from_disk(name: str, path: Path, size: int) -> AsyncIterator[bytes]:
    """Yields a file on disk, which is known to have this size."""
    yield header(name, size)
    with path.open("rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece
    yield padding(size)
