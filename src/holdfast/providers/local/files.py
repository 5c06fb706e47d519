"""Files of a box whose guest passes descriptors: opened inside the box, as its user, read and written out here."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from holdfast.boxes.errors import (
    BoxUnreachable,
    FileExists,
    FileMissing,
    HostileArchive,
    InvalidSpec,
    OutputTooLarge,
    WrongFileKind,
    file_problem,
)
from holdfast.boxes.files import MAX_READ, FileInfo, FileKind, Files, Match, Replaced
from holdfast.guest import tree
from holdfast.providers.local import link
from holdfast.providers.local.link import ArchiveRefused, GuestRefused, Link, Pipe, on_own_thread

_PIECE: Final = 1 << 18
_MAX_RESULTS: Final = 100_000
QUICK: Final = frozenset({"stat", "list", "mkdir", "chmod"})
"""What a guest does at once, or not at all. The others may take as long as there are files."""
T = TypeVar("T")


class GuestFiles(Files):
    def __init__(self, link: Link, workdir: str) -> None:
        self._link = link
        self._workdir = workdir

    def _request(self, operation: str, path: str, **more: object) -> dict[str, Any]:
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidSpec(f"{path!r} is no path")
        return {"op": operation, "path": path, "cwd": self._workdir, **more}

    async def _ask(self, operation: str, path: str, **more: object) -> dict[str, Any]:
        try:
            seconds = link.DEFAULT_SECONDS if operation in QUICK else None
            return await self._link.ask_path(self._request(operation, path, **more), path, seconds=seconds)
        except ArchiveRefused as refused:
            raise InvalidSpec(str(refused)) from None

    # --- one file ---

    async def _open(self, path: str) -> tuple[int, FileInfo]:
        """A descriptor of a plain file; anything else (a pipe, a device) is refused before a byte is read."""
        try:
            answer, given = await self._link.ask_descriptors(self._request("open", path))
        except GuestRefused as refused:
            raise file_problem(refused.number, refused.about or path) from None
        descriptor, *others = given or [-1]
        for each in others:
            os.close(each)
        if descriptor < 0:
            raise BoxUnreachable("the guest handed out no file")
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise WrongFileKind(f"{path}: not a plain file")
            return descriptor, _info(answer.get("file"))
        except BaseException:
            os.close(descriptor)
            raise

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if offset < 0 or (length is not None and length < 0):
            raise InvalidSpec("offset and length cannot be negative")
        descriptor, _ = await self._open(path)
        try:
            wanted = MAX_READ + 1 if length is None else min(length, MAX_READ + 1)
            data = await asyncio.to_thread(_read_all, descriptor, offset, wanted)
        finally:
            os.close(descriptor)
        if len(data) > MAX_READ:
            raise OutputTooLarge(f"{path} has more than {MAX_READ} bytes", hint="stream it, or read a part")
        return data

    async def stream(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        if offset < 0:
            raise InvalidSpec("an offset cannot be negative")
        descriptor, _ = await self._open(path)
        try:
            while data := await asyncio.to_thread(os.pread, descriptor, _PIECE, offset):
                offset += len(data)
                yield data
        finally:
            os.close(descriptor)

    async def write(self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644) -> None:
        if not 0 <= mode <= 0o7777:
            raise InvalidSpec(f"{mode:o} are no permissions")
        with await self._link.call(self._request("write", path, mode=mode)) as call:
            try:
                async with asyncio.timeout(link.DEFAULT_SECONDS):
                    _, given = await call.answer()
                if len(given) != 1:
                    for each in given:
                        os.close(each)
                    raise BoxUnreachable("the guest handed out no file")
                descriptor = given[0]
                try:
                    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                        raise BoxUnreachable("the guest handed out something that is no file")
                    if isinstance(data, (bytes, bytearray, memoryview)):
                        await asyncio.to_thread(_write_all, descriptor, bytes(data))
                    else:
                        async for piece in data:
                            await asyncio.to_thread(_write_all, descriptor, piece)
                except OSError as error:
                    raise file_problem(error.errno or errno.EIO, path) from None
                finally:
                    os.close(descriptor)
                call.send({"op": "commit"})
                async with asyncio.timeout(link.DEFAULT_SECONDS):
                    await call.done()
            except GuestRefused as refused:
                raise file_problem(refused.number, refused.about or path) from None
            except TimeoutError:
                raise BoxUnreachable(f"the guest did not answer in {link.DEFAULT_SECONDS:.0f} s") from None

    # --- folders and names ---

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        return _infos(await self._ask("list", path))

    async def stat(self, path: str) -> FileInfo:
        return _info((await self._ask("stat", path)).get("file"))

    async def mkdir(self, path: str) -> None:
        await self._ask("mkdir", path)

    async def move(self, source: str, target: str) -> None:
        self._request("move", target)
        await self._ask("move", source, target=target)

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        await self._ask("delete", path, recursive=recursive)

    async def chmod(self, path: str, mode: int) -> None:
        if not 0 <= mode <= 0o7777:
            raise InvalidSpec(f"{mode:o} are no permissions")
        await self._ask("chmod", path, mode=mode)

    async def find(self, path: str = ".", pattern: str = "*", *, limit: int = 10_000) -> Sequence[FileInfo]:
        return _infos(await self._ask("find", path, pattern=pattern, limit=_limit(limit)))

    async def search(
        self, pattern: str, path: str = ".", *, glob: str = "*", regex: bool = False, limit: int = 1_000
    ) -> Sequence[Match]:
        answer = await self._ask("search", path, pattern=pattern, glob=glob, regex=regex, limit=_limit(limit))
        return _many(answer, "matches", lambda each: Match(_text(each[0]), _number(each[1]), _text(each[2])))

    async def replace(
        self, pattern: str, replacement: str, paths: Sequence[str], *, regex: bool = False
    ) -> Sequence[Replaced]:
        if not pattern:
            raise InvalidSpec("there is nothing to look for: the pattern is empty")
        for each in paths:
            self._request("replace", each)
        more = {"paths": list(paths), "pattern": pattern, "replacement": replacement, "regex": regex}
        answer = await self._ask("replace", ".", **more)
        return _many(answer, "replaced", lambda each: Replaced(_text(each[0]), _number(each[1])))

    # --- trees ---

    async def upload_tar(self, archive: AsyncIterable[bytes], path: str) -> None:
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = Pipe(write)
        pipe.widen()
        try:
            try:
                call = await self._link.call(self._request("unpack", path), (read,))
            finally:
                os.close(read)
            with call:
                try:
                    async for piece in archive:
                        await pipe.write(piece)
                except BrokenPipeError:
                    pass  # it stopped reading: its answer says why
                pipe.close()
                try:
                    await call.done()
                except ArchiveRefused as refused:
                    raise HostileArchive(f"the archive was not unpacked: {refused}") from None
                except GuestRefused as refused:
                    raise file_problem(refused.number, refused.about or path) from None
        finally:
            pipe.close()

    async def download_tar(self, path: str) -> AsyncGenerator[bytes, None]:
        read, write = os.pipe2(os.O_CLOEXEC)
        pipe = Pipe(read)
        pipe.widen()
        try:
            try:
                call = await self._link.call(self._request("pack", path), (write,))
            finally:
                os.close(write)
            with call:
                while data := await pipe.read(_PIECE):
                    yield data
                try:
                    await call.done()
                except GuestRefused as refused:
                    raise file_problem(refused.number, refused.about or path) from None
        finally:
            pipe.close()

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
            raise FileExists(f"{target}: is there already on this machine")
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
            from holdfast.providers.local.ground import remove_tree

            if temporary.is_dir():
                remove_tree(temporary)
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
                await asyncio.to_thread(_write_all, descriptor, piece)
        os.fchmod(descriptor, mode)
    finally:
        os.close(descriptor)


async def _packed(folder: Path) -> AsyncGenerator[bytes, None]:
    """A folder of this machine as an archive, packed on a thread as fast as it is taken."""
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
    """An archive that nobody vouches for, unpacked on a thread."""
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
            pass  # it refused: it says why
        finally:
            pipe.close()
        await unpacking
    except ValueError as error:
        raise HostileArchive(f"the box sent an archive that was not unpacked: {error}") from None
    except OSError as error:
        raise file_problem(error.errno or errno.EIO, str(error.filename or target)) from None
    finally:
        pipe.close()
        await asyncio.gather(unpacking, return_exceptions=True)


def _read_all(descriptor: int, offset: int, wanted: int) -> bytes:
    pieces = []
    while wanted > 0 and (data := os.pread(descriptor, min(wanted, 1 << 22), offset)):
        pieces.append(data)
        offset += len(data)
        wanted -= len(data)
    return b"".join(pieces)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _limit(limit: int) -> int:
    if not 0 < limit <= _MAX_RESULTS:
        raise InvalidSpec(f"a limit of {limit} makes no sense: 1 to {_MAX_RESULTS}")
    return limit


# --- what the guest says, distrusted ----------------------------------------------------------------------------------


def _many(answer: dict[str, Any], name: str, read: Callable[[Any], T]) -> list[T]:
    values = answer.get(name)
    if not isinstance(values, list):
        raise BoxUnreachable(f"the guest's answer has no {name}")
    try:
        return [read(each) for each in values]
    except (IndexError, TypeError, KeyError):
        raise BoxUnreachable(f"the guest's answer has {name} that make no sense") from None


def _infos(answer: dict[str, Any]) -> Sequence[FileInfo]:
    return _many(answer, "files", _info)


def _info(value: Any) -> FileInfo:
    try:
        path, kind, size, mode, modified_at, target = value
        return FileInfo(
            _text(path),
            FileKind(kind),
            _number(size),
            _number(mode),
            _number(modified_at),
            None if target is None else _text(target),
        )
    except (TypeError, ValueError):
        raise BoxUnreachable("the guest describes a file in a way that makes no sense") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError("not a number")
    return value
