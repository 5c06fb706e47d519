"""Files of a box on a server. Large files are streamed and never held in memory as a whole."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final, cast

from holdfast.api.box.files import (
    MAX_READ,
    FileInfo,
    FileList,
    Files,
    Match,
    Matches,
    Mode,
    Move,
    NewFolder,
    Replace,
    Replaced,
    ReplacedList,
)
from holdfast.api.errors.boxes import FileExists, HostileArchive, OutputTooLarge, file_problem
from holdfast.client.resource import LONG_SECONDS, Resource
from holdfast.guest.init import tree

_PIECE: Final = 256 * 1024


class RemoteFiles(Files):
    def __init__(self, box: Resource) -> None:
        self._box = box

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if length is not None and length > MAX_READ:
            raise _too_large(path)
        kept = bytearray()
        async for piece in self._stream(path, offset, length):
            kept += piece
            if len(kept) > MAX_READ:
                raise _too_large(path)
        return bytes(kept)

    async def stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        async for piece in self._stream(path, offset, None):
            yield piece

    async def _stream(self, path: str, offset: int, length: int | None) -> AsyncIterator[bytes]:
        wanted = [("path", path), ("offset", str(offset))]
        if length is not None:
            wanted.append(("length", str(length)))
        async with self._box.exchange("GET", "/files", parameters=wanted) as response:
            async for piece in response.aiter_bytes():
                yield piece

    async def write(self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644) -> None:
        wanted = [("path", path), ("mode", str(mode))]
        body = data if isinstance(data, bytes) else _not_empty(data)
        async with self._box.exchange("PUT", "/files", parameters=wanted, body=body, silence=LONG_SECONDS):
            pass

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        return await self._files("/files/list", ("path", path))

    async def stat(self, path: str) -> FileInfo:
        return (await self._box.ask("GET", "/files/stat", parameters=[("path", path)])).read(FileInfo.from_json)

    async def mkdir(self, path: str) -> None:
        await self._box.ask("POST", "/files/mkdir", NewFolder(path=path).to_request())

    async def move(self, source: str, target: str) -> None:
        await self._box.ask("POST", "/files/move", Move(source=source, target=target).to_request(), repeatable=False)

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        wanted = [("path", path), ("recursive", str(recursive).lower())]
        await self._box.ask("DELETE", "/files", parameters=wanted, repeatable=False, timeout=LONG_SECONDS)

    async def chmod(self, path: str, mode: int) -> None:
        await self._box.ask("POST", "/files/chmod", Mode(path=path, mode=mode).to_request())

    async def find(self, path: str = ".", pattern: str = "*", *, limit: int = 10_000) -> Sequence[FileInfo]:
        return await self._files("/files/find", ("path", path), ("pattern", pattern), ("limit", str(limit)))

    async def search(
        self, pattern: str, path: str = ".", *, glob: str = "*", regex: bool = False, limit: int = 1_000
    ) -> Sequence[Match]:
        wanted = [("pattern", pattern), ("path", path), ("glob", glob), ("regex", str(regex).lower())]
        wanted.append(("limit", str(limit)))
        answer = await self._box.ask("GET", "/files/search", parameters=wanted, timeout=LONG_SECONDS)
        return answer.read(Matches.from_json).matches

    async def replace(
        self, pattern: str, replacement: str, paths: Sequence[str], *, regex: bool = False
    ) -> Sequence[Replaced]:
        wanted = Replace(pattern=pattern, replacement=replacement, paths=[*paths], regex=regex).to_request()
        answer = await self._box.ask("POST", "/files/replace", wanted, repeatable=False, timeout=LONG_SECONDS)
        return answer.read(ReplacedList.from_json).replaced

    async def upload(self, source: Path, path: str) -> None:
        about = await asyncio.to_thread(_look, source)
        if stat.S_ISDIR(about.st_mode):
            await self.upload_tar(_packed(source), path)
        else:
            await self.write(path, _read(source), mode=stat.S_IMODE(about.st_mode) & 0o777)

    async def download(self, path: str, target: Path) -> None:
        if await asyncio.to_thread(os.path.lexists, target):
            raise FileExists(f"{target} already exists")
        await _unpacked(self.download_tar(path), target)

    async def upload_tar(self, archive: AsyncIterable[bytes], path: str) -> None:
        async with self._box.exchange(
            "PUT", "/tree", parameters=[("path", path)], body=_not_empty(archive), silence=LONG_SECONDS
        ):
            pass

    async def download_tar(self, path: str) -> AsyncGenerator[bytes, None]:
        async with self._box.exchange("GET", "/tree", parameters=[("path", path)], silence=LONG_SECONDS) as response:
            async for piece in response.aiter_bytes():
                yield piece

    async def _files(self, path: str, *parameters: tuple[str, str]) -> Sequence[FileInfo]:
        answer = await self._box.ask("GET", path, parameters=parameters, timeout=LONG_SECONDS)
        return answer.read(FileList.from_json).files


def _too_large(path: str) -> OutputTooLarge:
    return OutputTooLarge(f"{path} has more than {MAX_READ} bytes", hint="stream it, or read it in parts")


async def _not_empty(pieces: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """Skip empty pieces, which would end a chunked body."""
    async for piece in pieces:
        if piece:
            yield piece


def _look(source: Path) -> os.stat_result:
    try:
        return source.stat()
    except OSError as error:
        raise file_problem(error.errno or errno.EIO, str(source)) from None


async def _read(source: Path) -> AsyncIterator[bytes]:
    file = await asyncio.to_thread(source.open, "rb")
    try:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece
    finally:
        file.close()


async def _packed(source: Path) -> AsyncIterator[bytes]:
    """Yields a folder as a tar stream. A thread packs it into a pipe, and blocks while the pipe is full."""
    read_end, write_end = os.pipe()

    def pack() -> None:
        with open(write_end, "wb", buffering=0) as out:  # noqa: PTH123 - a descriptor
            tree.pack(str(source), cast("BinaryIO", out))

    packing = asyncio.ensure_future(asyncio.to_thread(pack))
    reading: asyncio.Future[bytes] | None = None
    try:
        while True:
            reading = asyncio.ensure_future(asyncio.to_thread(os.read, read_end, _PIECE))
            piece = await asyncio.shield(reading)
            if not piece:
                break
            yield piece
        try:
            await packing
        except OSError as error:
            raise file_problem(error.errno or errno.EIO, error.filename or str(source)) from None
    finally:
        if reading is not None:
            await asyncio.gather(reading, return_exceptions=True)
        os.close(read_end)  # ends the packing if it is still running
        await asyncio.gather(packing, return_exceptions=True)


async def _unpacked(archive: AsyncGenerator[bytes, None], target: Path) -> None:
    """Unpack an untrusted archive from a box. A thread unpacks it from a pipe."""
    read_end, write_end = os.pipe()

    def unpack() -> None:
        with open(read_end, "rb") as source:  # noqa: PTH123 - a descriptor
            tree.unpack_item(cast("BinaryIO", source), str(target))

    unpacking = asyncio.ensure_future(asyncio.to_thread(unpack))
    failed: BaseException | None = None
    writing: asyncio.Future[None] | None = None
    try:
        # A refused archive is left half-read. Its response has to be closed here, and not when the loop ends.
        async with contextlib.aclosing(archive):
            async for piece in archive:
                writing = asyncio.ensure_future(asyncio.to_thread(_write, write_end, piece))
                await asyncio.shield(writing)
    except BrokenPipeError:
        pass  # the unpacking failed; its error is raised below
    except BaseException as error:
        failed = error
    finally:
        if writing is not None:
            await asyncio.gather(writing, return_exceptions=True)
        os.close(write_end)
    await asyncio.gather(unpacking, return_exceptions=True)
    if failed is not None:
        raise failed
    problem = unpacking.exception()
    if isinstance(problem, tree.BadArchive):
        raise HostileArchive(f"the archive from the box cannot be unpacked to {target}: {problem}") from None
    if isinstance(problem, OSError):
        raise file_problem(problem.errno or errno.EIO, str(problem.filename or target)) from None
    if problem is not None:
        raise problem


def _write(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
