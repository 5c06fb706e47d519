"""Files of mirrors: brought over HTTP or from a folder, checked, and kept for the next time.

A file is known by its SHA-256. One that came halfway goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote, urlsplit

import httpx

from holdfast.images.debian.sources import without_password
from holdfast.images.errors import MirrorFailed

T = TypeVar("T")

_PAUSES: Final = (0.2, 1.0, 3.0)
_PIECE: Final = 1 << 20
_SECONDS: Final = httpx.Timeout(30.0, connect=15.0)
_AT_ONCE: Final = 8
_KEPT_SECONDS: Final = 90 * 86400.0
"""What nobody has asked for since is forgotten."""

_MISSING: Final = (403, 404, 410)
"""Stores of objects answer 403 for what is not there."""

Moved = Callable[[int], None]
"""Told of bytes as they come; of fewer than none where they have to come again."""


class MissingFile(MirrorFailed):
    """The mirror has no such file."""


@dataclass(frozen=True, slots=True)
class Wanted:
    url: str
    size: int
    sha256: str


class Downloads:
    """Owns its folder, shared with other builds that go on at the same time; not the client."""

    def __init__(self, client: httpx.AsyncClient, folder: Path, *, at_once: int = _AT_ONCE) -> None:
        self._client = client
        self._folder = folder
        self._turns = asyncio.Semaphore(at_once)

    async def read(self, url: str, most: int) -> bytes | None:
        """A small file, not kept: what may change is asked for every time. None where there is none."""
        return await self._persistently(url, lambda: self._read(url, most))

    async def fetch(self, wanted: Wanted, moved: Moved = lambda _: None) -> Path:
        """Where the file lies here, whole and checked."""
        path = self._folder / wanted.sha256[:2] / wanted.sha256
        if await asyncio.to_thread(_is_whole, path, wanted):
            moved(wanted.size)
            return path
        await asyncio.to_thread(path.parent.mkdir, parents=True, exist_ok=True, mode=0o700)
        async with self._turns:
            await self._persistently(wanted.url, lambda: self._bring(wanted, path, moved))
        return path

    async def fetch_all(self, wanted: Sequence[Wanted], moved: Moved = lambda _: None) -> list[Path]:
        """Several at once. Where one fails, the others are left; what came stays."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.fetch(each, moved)) for each in wanted]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    def forget_old(self, now: float | None = None) -> None:
        """Remove what no build has used for months."""
        before = (time.time() if now is None else now) - _KEPT_SECONDS
        for path in self._folder.glob("??/*"):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < before:
                    path.unlink()

    async def _persistently(self, url: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Again after what may pass: a mirror that is busy, a connection that broke."""
        for pause in (*_PAUSES, None):
            try:
                return await attempt()
            except (httpx.TransportError, httpx.HTTPStatusError, _Again) as error:
                if pause is None or not _may_pass(error):
                    raise MirrorFailed(
                        f"{without_password(url)} cannot be had: {_reason(error)}",
                        hint="run the command again: what came stays; or name another mirror with --mirror",
                    ) from error
                await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _read(self, url: str, most: int) -> bytes | None:
        if (local := local_path(url)) is not None:
            return await asyncio.to_thread(_read_local, local, most)
        kept = bytearray()
        async with self._client.stream("GET", url, timeout=_SECONDS, follow_redirects=True) as response:
            if response.status_code in _MISSING:
                return None
            response.raise_for_status()
            async for piece in response.aiter_bytes(_PIECE):
                kept += piece
                if len(kept) > most:
                    raise MirrorFailed(f"{without_password(url)} is larger than {most} bytes")
        return bytes(kept)

    async def _bring(self, wanted: Wanted, path: Path, moved: Moved) -> None:
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            counted += size
            moved(size)

        part = await _open_part(path)
        try:
            if part.size >= wanted.size:
                part.restart()
            if (local := local_path(wanted.url)) is not None:
                part.restart()
                await asyncio.to_thread(_copy, local, part, wanted)
            else:
                await self._receive(wanted, part, count)
            if part.digest() != wanted.sha256:
                part.restart()
                raise _Again("its checksum is not the one that was promised")
            await asyncio.to_thread(part.keep, path)
            moved(wanted.size - counted)
        except BaseException:
            moved(-counted)
            raise
        finally:
            part.close()

    async def _receive(self, wanted: Wanted, part: _Part, count: Moved) -> None:
        headers = {"Accept-Encoding": "identity"}
        if part.size:
            headers["Range"] = f"bytes={part.size}-"
        async with self._client.stream(
            "GET", wanted.url, headers=headers, timeout=_SECONDS, follow_redirects=True
        ) as response:
            if part.size and not _goes_on(response, part.size):
                part.restart()
                if response.status_code == 416:
                    raise _Again("the mirror cannot go on in the middle of it")
            if response.status_code in _MISSING:
                raise MissingFile(f"{without_password(wanted.url)} is not there: {response.status_code}")
            response.raise_for_status()
            count(part.size)
            async for piece in response.aiter_raw():
                if part.size + len(piece) > wanted.size:
                    part.restart()
                    raise MirrorFailed(f"{without_password(wanted.url)} is larger than the {wanted.size} bytes it has")
                part.add(piece)
                count(len(piece))


class _Again(Exception):
    """Worth another attempt."""


class _Part:
    """A file that is on its way. Its descriptor is locked: another build that wants it takes a file of its own."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._file = os.fdopen(descriptor, "r+b")
        self._sum = hashlib.sha256()
        self.size = 0
        while piece := self._file.read(_PIECE):
            self._sum.update(piece)
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

    def add(self, piece: bytes) -> None:
        self._file.write(piece)
        self._sum.update(piece)
        self.size += len(piece)

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._sum = hashlib.sha256()
        self.size = 0

    def digest(self) -> str:
        return self._sum.hexdigest()

    def keep(self, path: Path) -> None:
        self._file.flush()
        self._path.replace(path)

    def close(self) -> None:
        self._file.close()


async def _open_part(path: Path) -> _Part:
    """Nobody else would close one that was opened while its download was given up."""
    opening = asyncio.ensure_future(asyncio.to_thread(_Part.open, path))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        (await opening).close()
        raise


def local_path(url: str) -> Path | None:
    """Where a mirror that is a folder has it."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme in ("file", "copy") else None


def _copy(source: Path, part: _Part, wanted: Wanted) -> None:
    try:
        with source.open("rb") as file:
            while piece := file.read(_PIECE):
                part.add(piece)
                if part.size > wanted.size:
                    raise MirrorFailed(f"{source} is larger than the {wanted.size} bytes it has")
    except FileNotFoundError:
        raise MissingFile(f"{source} is not there") from None
    except OSError as error:
        raise MirrorFailed(f"{source} cannot be read: {(error.strerror or str(error)).lower()}") from None


def _read_local(path: Path, most: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return None
    except OSError as error:
        raise MirrorFailed(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from None
    if len(data) > most:
        raise MirrorFailed(f"{path} is larger than {most} bytes")
    return data


def _is_whole(path: Path, wanted: Wanted) -> bool:
    """Read again, every time: a disk may have lost some of it, and hashing is quicker than bringing it again."""
    try:
        if path.stat().st_size != wanted.size:
            return False
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != wanted.sha256:
                return False
        os.utime(path)
    except FileNotFoundError:
        return False
    return True


def _goes_on(response: httpx.Response, size: int) -> bool:
    return response.status_code == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {size}-")


def _may_pass(error: Exception) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= 500 or error.response.status_code in (408, 429)
    return True


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        return f"the mirror answers {error.response.status_code} {error.response.reason_phrase}"
    return str(error) or type(error).__name__
