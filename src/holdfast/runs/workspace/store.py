"""The files that workspaces start with: tar archives, each stored once under its digest."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
from collections.abc import AsyncIterable, AsyncIterator
from pathlib import Path
from typing import Final

from holdfast.api.errors import TooLarge
from holdfast.api.errors.runs import InvalidRun, WorkspaceNotFound

MAX_BYTES: Final = 1024 * 1024 * 1024
_PIECE: Final = 256 * 1024
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class Workspaces:
    """A folder of archives. `sweep` removes the files of interrupted uploads."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    async def keep(self, archive: AsyncIterable[bytes]) -> str:
        """Store an archive, and return its digest. Storing it again has no effect."""
        await asyncio.to_thread(self._folder.mkdir, 0o700, True, True)
        half = self._folder / f".{secrets.token_hex(8)}"
        digest, size = hashlib.sha256(), 0
        try:
            with await asyncio.to_thread(half.open, "xb") as file:
                async for piece in archive:
                    size += len(piece)
                    if size > self._max_bytes:
                        raise TooLarge(
                            f"a workspace may have at most {self._max_bytes} bytes",
                            hint="leave out what can be rebuilt, such as packages and build results",
                        )
                    digest.update(piece)
                    await asyncio.to_thread(file.write, piece)
                await asyncio.to_thread(_flush, file.fileno(), file)
            name = digest.hexdigest()
            await asyncio.to_thread(half.replace, self._folder / name)
            return name
        finally:
            await asyncio.to_thread(half.unlink, True)

    def check(self, digest: str) -> None:
        """Raises `WorkspaceNotFound`."""
        if not _DIGEST.fullmatch(digest):
            raise InvalidRun(f"{digest[:80]!r} is not the digest of a workspace")
        if not self.path(digest).is_file():
            raise WorkspaceNotFound(f"there is no workspace {digest}", hint="upload it first: POST /v1/workspaces")

    def path(self, digest: str) -> Path:
        return self._folder / digest

    async def read(self, digest: str) -> AsyncIterator[bytes]:
        self.check(digest)
        with await asyncio.to_thread(self.path(digest).open, "rb") as file:
            while piece := await asyncio.to_thread(file.read, _PIECE):
                yield piece

    async def read_whole(self, digest: str, *, most: int) -> bytes:
        """Returns something that was uploaded. Raises `TooLarge`."""
        self.check(digest)
        if (size := (await asyncio.to_thread(self.path(digest).stat)).st_size) > most:
            raise TooLarge(f"what was uploaded has {size} bytes, and at most {most} can be imported")
        return await asyncio.to_thread(self.path(digest).read_bytes)

    def sweep(self) -> None:
        """Remove what a killed server had half written. Call it before the first `keep`."""
        if self._folder.is_dir():
            for half in self._folder.glob(".*"):
                half.unlink(missing_ok=True)


def _flush(descriptor: int, file: object) -> None:
    file.flush()  # type: ignore[attr-defined]
    os.fsync(descriptor)
