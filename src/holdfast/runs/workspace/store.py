"""What workspaces begin with: tar archives, kept once each under their digest, as they were sent."""

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
    """A folder of archives. Who is killed while writing leaves a file that `sweep` removes."""

    def __init__(self, folder: Path, *, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    async def keep(self, archive: AsyncIterable[bytes]) -> str:
        """Keep an archive; says its digest. The same one twice is kept once."""
        await asyncio.to_thread(self._folder.mkdir, 0o700, True, True)
        half = self._folder / f".{secrets.token_hex(8)}"
        digest, size = hashlib.sha256(), 0
        try:
            with await asyncio.to_thread(half.open, "xb") as file:
                async for piece in archive:
                    size += len(piece)
                    if size > self._max_bytes:
                        raise TooLarge(
                            f"a workspace has {self._max_bytes} bytes at most",
                            hint="leave out what can be made again, such as packages and builds",
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

    def sweep(self) -> None:
        """Remove what a server that was killed had half written. Only before anything is kept."""
        if self._folder.is_dir():
            for half in self._folder.glob(".*"):
                half.unlink(missing_ok=True)


def _flush(descriptor: int, file: object) -> None:
    file.flush()  # type: ignore[attr-defined]
    os.fsync(descriptor)
