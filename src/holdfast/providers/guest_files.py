"""The files of a box with a guest: names, folders, searches, and copies of whole trees.

Subclasses transfer the bytes of a file, by passing descriptors or over a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.files import FileInfo, FileKind, Files, Match, Replaced
from holdfast.api.errors.boxes import FileExists, FileMissing, HostileArchive, InvalidSpec, file_problem
from holdfast.guest.init import tree
from holdfast.providers.guest_protocol import info, infos, many, number_of, text_of
from holdfast.providers.pipes import Pipe, on_own_thread

_PIECE: Final = 1 << 18
_MAX_RESULTS: Final = 100_000
QUICK: Final = frozenset({"stat", "list", "mkdir", "chmod"})
"""Operations that a guest answers at once. The time of others depends on the number of files."""


class AskedFiles(Files):
    def __init__(self, workdir: str) -> None:
        self._workdir = workdir

    def _request(self, operation: str, path: str, **more: object) -> dict[str, Any]:
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidSpec(f"{path!r} is not a valid path")
        return {"op": operation, "path": path, "cwd": self._workdir, **more}

    @abstractmethod
    async def _ask(self, operation: str, path: str, **more: object) -> dict[str, Any]:
        """Send a request about a path to the guest. Raises `FileProblem` or `InvalidSpec`."""

    @abstractmethod
    def stream(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]: ...

    @abstractmethod
    def download_tar(self, path: str) -> AsyncGenerator[bytes, None]: ...

    # --- folders and names ---

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        return infos(await self._ask("list", path))

    async def stat(self, path: str) -> FileInfo:
        return info((await self._ask("stat", path)).get("file"))

    async def mkdir(self, path: str) -> None:
        await self._ask("mkdir", path)

    async def move(self, source: str, target: str) -> None:
        self._request("move", target)
        await self._ask("move", source, target=target)

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        await self._ask("delete", path, recursive=recursive)

    async def chmod(self, path: str, mode: int) -> None:
        if not 0 <= mode <= 0o7777:
            raise InvalidSpec(f"{mode:o} is not a valid file mode")
        await self._ask("chmod", path, mode=mode)

    async def find(self, path: str = ".", pattern: str = "*", *, limit: int = 10_000) -> Sequence[FileInfo]:
        return infos(await self._ask("find", path, pattern=pattern, limit=_limit(limit)))

    async def search(
        self, pattern: str, path: str = ".", *, glob: str = "*", regex: bool = False, limit: int = 1_000
    ) -> Sequence[Match]:
        answer = await self._ask("search", path, pattern=pattern, glob=glob, regex=regex, limit=_limit(limit))
        return many(answer, "matches", lambda each: Match(text_of(each[0]), number_of(each[1]), text_of(each[2])))

    async def replace(
        self, pattern: str, replacement: str, paths: Sequence[str], *, regex: bool = False
    ) -> Sequence[Replaced]:
        if not pattern:
            raise InvalidSpec("the pattern is empty")
        for each in paths:
            self._request("replace", each)
        more = {"paths": list(paths), "pattern": pattern, "replacement": replacement, "regex": regex}
        answer = await self._ask("replace", ".", **more)
        return many(answer, "replaced", lambda each: Replaced(text_of(each[0]), number_of(each[1])))

    # --- trees of this machine ---

    async def upload(self, source: Path, path: str) -> None:
        if not os.path.lexists(source):
            raise FileMissing(f"{source}: there is no such file or folder on this machine")
        if source.is_dir():
            await self.mkdir(path)
            async with contextlib.aclosing(_packed(source)) as packed:
                await self.upload_tar(packed, path)
        else:
            await self.write(path, _pieces(source), mode=stat.S_IMODE(source.stat().st_mode) & 0o777)

    async def download(self, path: str, target: Path) -> None:
        if os.path.lexists(target):
            raise FileExists(f"{target}: already exists on this machine")
        if not target.parent.is_dir():
            raise FileMissing(f"{target.parent}: there is no such folder on this machine")
        info = await self.stat(path)
        temporary = target.with_name(f".{target.name}.{os.urandom(6).hex()}")
        try:
            if info.kind is FileKind.FOLDER:
                await _unpacked(self.download_tar(path), temporary)
            else:
                await _save(self.stream(path), temporary, info.mode & 0o777)
            temporary.rename(target)
        except BaseException:
            from holdfast.guest.init.search import Removal

            if temporary.is_dir():
                with contextlib.suppress(OSError):
                    Removal().remove(str(temporary))
            else:
                temporary.unlink(missing_ok=True)
            raise


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while data := await asyncio.to_thread(file.read, _PIECE):
            yield data


async def _save(pieces: AsyncGenerator[bytes, None], target: Path, mode: int) -> None:
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                await asyncio.to_thread(write_all, descriptor, piece)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


async def _packed(folder: Path) -> AsyncGenerator[bytes, None]:
    """Yields a folder of this machine as a tar archive, packed on a thread."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pipe = Pipe(read)
    pipe.widen()

    def pack() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(write, "wb") as out:
            tree.pack(str(folder), out)

    packing = on_own_thread(pack)
    try:
        while data := await pipe.read(_PIECE):
            yield data
    finally:
        pipe.close()
        await packing


async def _unpacked(archive: AsyncGenerator[bytes, None], target: Path) -> None:
    """Unpacks an untrusted archive on a thread."""
    read, write = os.pipe2(os.O_CLOEXEC)
    pipe = Pipe(write)
    pipe.widen()

    def unpack() -> None:
        with os.fdopen(read, "rb") as source:
            tree.unpack(source, str(target))

    target.mkdir()
    unpacking = on_own_thread(unpack)
    try:
        try:
            async with contextlib.aclosing(archive):
                async for piece in archive:
                    await pipe.write(piece)
        except BrokenPipeError:
            pass  # `unpack` refused the archive and raises the reason
        finally:
            pipe.close()
        await unpacking
    except ValueError as error:
        raise HostileArchive(f"the archive that the box sent was refused: {error}") from None
    except OSError as error:
        raise file_problem(error.errno or errno.EIO, str(error.filename or target)) from None
    finally:
        pipe.close()
        await asyncio.gather(unpacking, return_exceptions=True)


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _limit(limit: int) -> int:
    if not 0 < limit <= _MAX_RESULTS:
        raise InvalidSpec(f"the limit is {limit}, but has to be between 1 and {_MAX_RESULTS}")
    return limit
