"""Files of a dummy box: a folder of the host that is its root. Links are resolved inside it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, TypeVar, cast

from holdfast.api.box.files import MAX_READ, FileInfo, FileKind, Files, Match, Replaced
from holdfast.api.errors.boxes import (
    BoxError,
    FileExists,
    FileProblem,
    HostileArchive,
    InvalidSpec,
    OutputTooLarge,
    WrongFileKind,
    file_problem,
)
from holdfast.guest.init import search, tree

T = TypeVar("T")
_PIECE: Final = 1 << 18


class Root:
    """Maps paths of a box to paths of the host."""

    def __init__(self, folder: Path, workdir: str, mounts: Mapping[str, Path]) -> None:
        self.folder = folder
        self.workdir = workdir
        self._mounts = {PurePosixPath(path).parts[1:]: place for path, place in mounts.items()}

    def place(self, path: str, *, follow: bool = True) -> Path:
        """Returns the path on the host. A link at its end is followed on request; links on the way always are."""
        if not isinstance(path, str) or not path or "\0" in path:
            raise InvalidSpec(f"path {path!r} is invalid")
        if len(os.fsencode(path)) >= 4096:
            raise OSError(errno.ENAMETOOLONG, "the name is too long")
        if Path(path).is_relative_to(self.folder):
            path = f"/{Path(path).relative_to(self.folder)}"  # without a sandbox, commands see paths of the host
        waiting = list(PurePosixPath(self.workdir, path).parts[1:])[::-1]
        reached: list[str] = []
        hops = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                reached = reached[:-1]
                continue
            place = self._host([*reached, part])
            mounted = (*reached, part) in self._mounts
            if not mounted and place.is_symlink() and (waiting or follow):
                hops += 1
                if hops > 40:
                    raise OSError(errno.ELOOP, "too many links")
                target = PurePosixPath(place.readlink())
                if target.is_absolute():
                    reached = []
                waiting += [each for each in target.parts if each != "/"][::-1]
            else:
                reached.append(part)
        return self._host(reached)

    def inner(self, place: str) -> str:
        """Returns the path in the box for a path of the host."""
        for parts, mounted in self._mounts.items():
            if Path(place).is_relative_to(mounted):
                return str(PurePosixPath("/", *parts, Path(place).relative_to(mounted)))
        return str(PurePosixPath("/", Path(place).relative_to(self.folder)))

    def _host(self, parts: Sequence[str]) -> Path:
        for length in range(len(parts), 0, -1):
            if (mounted := self._mounts.get(tuple(parts[:length]))) is not None:
                return mounted.joinpath(*parts[length:])
        return self.folder.joinpath(*parts)


class DummyFiles(Files):
    def __init__(self, root: Callable[[], Root]) -> None:
        self._root = root
        """Raises if the box is gone or stopped."""

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        with self._at(path) as place, _open(place) as file:
            size = max(0, os.fstat(file.fileno()).st_size - offset)
            wanted = size if length is None else min(size, length)
            if wanted > MAX_READ:
                raise OutputTooLarge(f"{path}: {wanted} bytes", hint="stream it, or read it part by part")
            file.seek(offset)
            return file.read(wanted)

    async def stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        with self._at(path) as place, _open(place) as file:
            file.seek(offset)
            while piece := file.read(_PIECE):
                yield piece

    async def write(self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644) -> None:
        with self._at(path) as place:
            _make_folder(place.parent)
            if place.is_dir():
                raise WrongFileKind(f"{path}: is a folder")
            descriptor, name = tempfile.mkstemp(dir=place.parent, prefix=".holdfast-")
            beside = place.parent / name
            try:
                with os.fdopen(descriptor, "wb") as file:
                    if isinstance(data, bytes | bytearray | memoryview):
                        file.write(data)
                    else:
                        async for piece in data:
                            file.write(piece)
                    os.fchmod(file.fileno(), mode)
                beside.rename(place)
            except BaseException:
                beside.unlink(missing_ok=True)
                raise

    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        with self._at(path) as place:
            return [self._info(entry) for entry in search.list_folder(str(place))]

    async def stat(self, path: str) -> FileInfo:
        with self._at(path, follow=False) as place:
            return self._info(search.describe(str(place)))

    async def mkdir(self, path: str) -> None:
        with self._at(path) as place:
            _make_folder(place)

    async def move(self, source: str, target: str) -> None:
        with self._at(source, follow=False) as old, self._at(target, follow=False) as new:
            _move(old, new, target)

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        with self._at(path, follow=False) as place:
            _delete(place, recursive)

    async def chmod(self, path: str, mode: int) -> None:
        with self._at(path) as place:
            place.chmod(mode)

    async def find(self, path: str = ".", pattern: str = "*", *, limit: int = 10_000) -> Sequence[FileInfo]:
        with self._at(path) as place:
            _check_folder(place)
            return [self._info(entry) for entry in search.find(str(place), pattern, limit)]

    async def search(
        self, pattern: str, path: str = ".", *, glob: str = "*", regex: bool = False, limit: int = 1_000
    ) -> Sequence[Match]:
        with self._at(path) as place:
            found = _sensibly(lambda: search.search(str(place), pattern, glob, regex, limit))
            return [Match(self._root().inner(where), line, text) for where, line, text in found]

    async def replace(
        self, pattern: str, replacement: str, paths: Sequence[str], *, regex: bool = False
    ) -> Sequence[Replaced]:
        with self._at(paths[0] if paths else "."):
            places = {str(self._root().place(path, follow=False)): path for path in paths}
            done = _sensibly(lambda: search.replace(tuple(places), pattern, replacement, regex))
            return [Replaced(self._root().inner(where), count) for where, count in done]

    async def upload(self, source: Path, path: str) -> None:
        with self._at(path) as place, tempfile.TemporaryFile() as archive:
            tree.pack(str(source), cast("BinaryIO", archive))
            archive.seek(0)
            _make_folder(place.parent)
            if _is_folder(source):
                _unpacked(lambda: tree.unpack(cast("BinaryIO", archive), str(place), links="anywhere"))
            else:
                if place.exists():
                    _delete(place, recursive=False)
                _unpacked(lambda: tree.unpack_item(cast("BinaryIO", archive), str(place), links="anywhere"))

    async def download(self, path: str, target: Path) -> None:
        with self._at(path) as place, tempfile.TemporaryFile() as archive:
            tree.pack(str(place), cast("BinaryIO", archive))
            archive.seek(0)
            _unpacked(lambda: tree.unpack_item(cast("BinaryIO", archive), str(target)))

    async def upload_tar(self, archive: AsyncIterable[bytes], path: str) -> None:
        with self._at(path) as place, tempfile.TemporaryFile() as file:
            async for piece in archive:
                file.write(piece)
            file.seek(0)
            _make_folder(place)
            _unpacked(lambda: tree.unpack(cast("BinaryIO", file), str(place), links="anywhere"))

    async def download_tar(self, path: str) -> AsyncIterator[bytes]:
        with self._at(path) as place, tempfile.TemporaryFile() as archive:
            tree.pack(str(place), cast("BinaryIO", archive))
            archive.seek(0)
            while piece := archive.read(_PIECE):
                yield piece

    @contextmanager
    def _at(self, path: str, *, follow: bool = True) -> Iterator[Path]:
        try:
            yield self._root().place(path, follow=follow)
        except BoxError:
            raise
        except OSError as error:
            raise file_problem(error.errno or errno.EIO, path) from None

    def _info(self, entry: tuple[str, str, int, int, int, str | None]) -> FileInfo:
        path, kind, size, mode, modified, target = entry
        return FileInfo(self._root().inner(path), FileKind(kind), size, mode, modified, target)


def _open(place: Path) -> BinaryIO:
    if place.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder")
    descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "is not a file")
    return os.fdopen(descriptor, "rb")


def _make_folder(place: Path) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder") from None


def _check_folder(place: Path) -> None:
    os.close(os.open(place, os.O_RDONLY | os.O_DIRECTORY))


def _is_folder(place: Path) -> bool:
    return place.is_dir() and not place.is_symlink()


def _move(old: Path, new: Path, target: str) -> None:
    old.lstat()
    if _is_folder(new):
        raise FileExists(f"{target}: is a folder")
    _make_folder(new.parent)
    shutil.move(old, new) if old.stat(follow_symlinks=False).st_dev != new.parent.stat().st_dev else old.rename(new)


def _delete(place: Path, recursive: bool) -> None:
    if not _is_folder(place):
        place.unlink()
    elif recursive:
        search.remove_tree(str(place))
    else:
        place.rmdir()


def _sensibly(work: Callable[[], T]) -> T:
    try:
        return work()
    except (ValueError, re.error) as error:
        raise InvalidSpec(str(error)) from None


def _unpacked(work: Callable[[], Any]) -> None:
    try:
        work()
    except tree.HostileArchive as error:
        raise HostileArchive(str(error)) from None
    except tree.BadArchive as error:
        raise FileProblem(f"not an archive: {error}") from None
