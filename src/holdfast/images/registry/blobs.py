"""Blobs of registries on disk: fetched, verified by digest, and cached.

An interrupted download continues where it stopped, in this pull or a later one. Blobs are kept for a week, because the
next version of an image shares most of its layers.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx

from holdfast.api.errors.boxes import BoxError, HostileArchive, NoSpace
from holdfast.images.registry import client
from holdfast.images.registry.client import Busy, Registry, is_final
from holdfast.images.registry.manifest import Blob

_PIECE: Final = 1 << 20
_AT_ONCE: Final = 3
_MOST_ATTEMPTS: Final = 20
"""In total. Attempts without progress end sooner, after the pauses of the client."""
_KEPT_SECONDS: Final = 7 * 86400.0
_SPARE: Final = 256 << 20
"""Bytes that stay free on disk."""

Moved = Callable[[int], None]
"""Called with the bytes that arrived, or with a negative number if they have to be fetched again."""


class Blobs:
    """A folder of blobs by digest, shared with every other pull on this machine."""

    def __init__(self, folder: Path, *, at_once: int = _AT_ONCE) -> None:
        self._folder = folder
        self._turns = asyncio.Semaphore(at_once)

    async def fetch(self, registry: Registry, blob: Blob, moved: Moved = lambda _: None) -> Path:
        """Returns the path of the blob on disk, complete and verified."""
        path = self._folder / blob.sha256[:2] / blob.sha256
        async with self._turns:
            if await asyncio.to_thread(_is_whole, path, blob):
                moved(blob.size)
                return path
            await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True, mode=0o700)
            await self._persistently(registry, blob, path, moved)
        return path

    def make_room(self, size: int) -> None:
        """Raises `NoSpace` if the disk cannot store this many bytes twice: as a blob and imported."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = os.statvfs(self._folder)
        free = about.f_bavail * about.f_frsize
        if free < 2 * size + _SPARE:
            raise NoSpace(
                f"the image takes {size >> 20} MB to fetch and as much again to import, and {free >> 20} MB are free",
                hint="holdfast image list shows what could be removed",
            )

    def forget_old(self, now: float | None = None) -> None:
        """Remove blobs that no pull has used for a week."""
        before = (time.time() if now is None else now) - _KEPT_SECONDS
        for path in self._folder.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()

    async def _persistently(self, registry: Registry, blob: Blob, path: Path, moved: Moved) -> None:
        """Retry while there is progress, and a few times without."""
        idle, size = 0, -1
        failed: Exception = RuntimeError("no attempt was made")
        for _ in range(_MOST_ATTEMPTS):
            part = await _open_part(path)
            try:
                idle, size = (0, part.size) if part.size > size else (idle + 1, size)
                await self._bring(registry, blob, part, path, moved)
                return
            except (httpx.TransportError, Busy, _Mismatch) as error:
                failed = error
            finally:
                part.close()
            if idle >= len(client.PAUSES) or is_final(failed):
                break
            await asyncio.sleep(client.PAUSES[idle])
        raise _failure(registry, blob, failed) from failed

    async def _bring(self, registry: Registry, blob: Blob, part: _Part, path: Path, moved: Moved) -> None:
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            counted += size
            moved(size)

        try:
            if part.size > blob.size:
                part.restart()
            if part.size < blob.size or blob.size == 0:
                await self._receive(registry, blob, part, count)
            if (part.digest, part.size) != (blob.digest, blob.size):
                part.restart()
                raise _Mismatch
            await asyncio.to_thread(part.keep, path)
            moved(blob.size - counted)
        except BaseException:
            moved(-counted)
            raise

    async def _receive(self, registry: Registry, blob: Blob, part: _Part, count: Moved) -> None:
        async with registry.blob(blob.digest, part.size) as response:
            if part.size and not _goes_on(response, part.size):
                part.restart()
                if response.status_code == 416:
                    raise Busy(416)
            count(part.size)
            async for piece in response.aiter_raw():
                if part.size + len(piece) > blob.size:
                    part.restart()
                    raise HostileArchive(
                        f"the registry {registry.host} sends more for {blob.digest} than the {blob.size} bytes it has"
                    )
                await asyncio.to_thread(part.add, piece) if len(piece) >= _PIECE else part.add(piece)
                count(len(piece))


class _Mismatch(Exception):
    """The digest or size differs. A disk or a proxy may be the cause, so it is fetched once more."""


def _failure(registry: Registry, blob: Blob, error: Exception) -> BoxError:
    if isinstance(error, _Mismatch):
        return HostileArchive(
            f"what the registry {registry.host} sends for {blob.digest} has another digest or size",
            hint="the registry, or a proxy before it, changes what it sends",
        )
    return registry.failure(error)


class _Part:
    """A blob being fetched. Its file is locked: another pull of the same blob uses another file."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._file = os.fdopen(descriptor, "r+b")
        self._hash = hashlib.sha256()
        self.size = 0
        while piece := self._file.read(_PIECE):
            self._hash.update(piece)
            self.size += len(piece)

    @classmethod
    def open(cls, path: Path) -> _Part:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        part = path.with_name(f"{path.name}.part")
        descriptor = os.open(part, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
            descriptor = os.open(part, flags | os.O_EXCL, 0o600)
        return cls(part, descriptor)

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"

    def add(self, piece: bytes) -> None:
        self._file.write(piece)
        self._hash.update(piece)
        self.size += len(piece)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._hash = hashlib.sha256()
        self.size = 0

    def keep(self, path: Path) -> None:
        self._file.flush()
        self._path.replace(path)

    def close(self) -> None:
        self._file.close()


async def _open_part(path: Path) -> _Part:
    """Opens it in a thread. Also closes it if the pull is cancelled meanwhile."""
    opening = asyncio.ensure_future(asyncio.to_thread(_Part.open, path))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        (await opening).close()
        raise


def _is_whole(path: Path, blob: Blob) -> bool:
    """Reads it every time: the disk may have lost some of it, and hashing is faster than fetching."""
    try:
        if path.stat().st_size != blob.size:
            return False
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != blob.sha256:
                return False
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _goes_on(response: httpx.Response, size: int) -> bool:
    return response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {size}-")
