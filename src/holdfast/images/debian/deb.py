"""A Debian package as a file: an ar archive with one tar of what is known of it, and one of what it installs.

Every byte of it is distrusted: names, sizes, links, and how much comes out of how little.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import lzma
import posixpath
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from holdfast.images.errors import BadPackage

_MAGIC: Final = b"!<arch>\n"
_HEADER: Final = 60
_MOST_MEMBERS: Final = 16
_BUFFER: Final = 1 << 16
_LARGEST_CONTROL: Final = 64 * 1024 * 1024
_LARGEST_DATA: Final = 16 * 1024**3
_MOST_ENTRIES: Final = 500_000
_LONGEST: Final = 4096
_CONTROL_NAME_LENGTH: Final = 64


@dataclass(frozen=True, slots=True)
class Member:
    offset: int
    size: int
    compression: str


class Deb:
    """Owns the file that it reads; `with` closes it."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        self._file = path.open("rb")
        try:
            members = _members(self._file, path.stat().st_size, name)
            self._control = _find(members, "control.tar", name)
            self._data = _find(members, "data.tar", name)
        except BaseException:
            self._file.close()
            raise

    def control(self) -> dict[str, bytes]:
        """The files that say what it is and what it does when it is installed, by name."""
        found: dict[str, bytes] = {}
        left = _LARGEST_CONTROL
        with self._tar(self._control, _LARGEST_CONTROL) as tar:
            for entry in self._entries(tar):
                name = clean_path(entry.name, self._name)
                if not entry.isreg() or not name:
                    continue
                left -= entry.size
                if "/" in name or len(name) > _CONTROL_NAME_LENGTH or left < 0:
                    raise BadPackage(f"package {self._name} has a control file that makes no sense: {name[:80]!r}")
                found[name] = _content(tar, entry).read()
        if "control" not in found:
            raise BadPackage(f"package {self._name} does not say what it is: it has no control file")
        return found

    def entries(self) -> Iterator[tuple[tarfile.TarInfo, str, IO[bytes] | None]]:
        """What it installs: each with its path, checked, and its content, where it is a file."""
        with self._tar(self._data, _LARGEST_DATA) as tar:
            for entry in self._entries(tar):
                path = clean_path(entry.name, self._name)
                if not (entry.isreg() or entry.isdir() or entry.issym() or entry.islnk()):
                    raise BadPackage(f"package {self._name} wants a device or a pipe at /{path}", hint="leave it out")
                if len(entry.linkname) > _LONGEST or "\0" in entry.linkname or (entry.issym() and not entry.linkname):
                    raise BadPackage(f"package {self._name} has a link that makes no sense at /{path}")
                yield entry, path, _content(tar, entry) if entry.isreg() else None

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Deb:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _tar(self, member: Member, most: int) -> Iterator[tarfile.TarFile]:
        part = io.BufferedReader(_Slice(self._file, member), _BUFFER)
        try:
            with (
                _decompressed(part, member.compression, self._name) as plain,
                tarfile.open(fileobj=io.BufferedReader(_Bounded(plain, most, self._name), _BUFFER), mode="r|") as tar,
            ):
                yield tar
        except (tarfile.TarError, lzma.LZMAError, EOFError, gzip.BadGzipFile, OSError) as error:
            raise BadPackage(f"package {self._name} is broken: {error}") from None

    def _entries(self, tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
        for number, entry in enumerate(tar):
            if number >= _MOST_ENTRIES:
                raise BadPackage(f"package {self._name} has more than {_MOST_ENTRIES} files")
            tar.members = []  # type: ignore[attr-defined]  # or it keeps every one of them
            yield entry


def clean_path(name: str, package: str) -> str:
    """A path from the root, without `.`; the root itself is empty. Raises for one that leads out."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name or len(name) > _LONGEST:
        raise BadPackage(f"package {package} has a path that leads out of it: {name[:200]!r}")
    return "/".join(parts)


def _members(file: IO[bytes], size: int, package: str) -> dict[str, Member]:
    if file.read(len(_MAGIC)) != _MAGIC:
        raise BadPackage(f"package {package} is no Debian package: it does not begin like one")
    found: dict[str, Member] = {}
    at = len(_MAGIC)
    while at + _HEADER <= size:
        file.seek(at)
        header = file.read(_HEADER)
        name = header[:16].decode("ascii", "replace").strip().rstrip("/")
        try:
            length = int(header[48:58])
        except ValueError:
            length = -1
        if header[58:] != b"`\n" or not 0 <= length <= size - at - _HEADER or len(found) >= _MOST_MEMBERS:
            raise BadPackage(f"package {package} is broken: its archive ends in the middle, or makes no sense")
        found.setdefault(name, Member(at + _HEADER, length, posixpath.splitext(name)[1]))
        at += _HEADER + length + length % 2
    return found


def _find(members: dict[str, Member], name: str, package: str) -> Member:
    if "debian-binary" not in members:
        raise BadPackage(f"package {package} is no Debian package: it does not say its format")
    for suffix in ("", ".gz", ".xz", ".zst"):
        if (member := members.get(name + suffix)) is not None:
            return Member(member.offset, member.size, suffix)
    raise BadPackage(f"package {package} has no {name}, or one of an unknown kind: {', '.join(members)}")


@contextlib.contextmanager
def _decompressed(part: IO[bytes], compression: str, package: str) -> Iterator[IO[bytes]]:
    if compression == "":
        yield part
    elif compression == ".gz":
        with gzip.GzipFile(fileobj=part) as plain:
            yield plain  # type: ignore[misc]
    elif compression == ".xz":
        with lzma.LZMAFile(part) as plain_xz:
            yield plain_xz
    else:
        with _zstd(part, package) as plain_zstd:
            yield plain_zstd


@contextlib.contextmanager
def _zstd(part: IO[bytes], package: str) -> Iterator[IO[bytes]]:
    """Python 3.14 reads it; for those before, the program `zstd` does."""
    with contextlib.suppress(ImportError):
        module = importlib.import_module("compression.zstd")
        with module.ZstdFile(part) as plain:
            yield plain
        return
    program = shutil.which("zstd")
    if program is None:
        raise BadPackage(
            f"package {package} is packed with zstd, which this Python cannot read",
            hint="install the program zstd, or use Python 3.14",
        )
    data = part.read()
    with subprocess.Popen(
        [program, "-dcq"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin = process.stdin

        def feed() -> None:
            with contextlib.suppress(BrokenPipeError), stdin:
                stdin.write(data)

        feeding = threading.Thread(target=feed, name="zstd", daemon=True)
        feeding.start()
        try:
            yield process.stdout
        finally:
            process.kill()
            feeding.join()


def _content(tar: tarfile.TarFile, entry: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(entry)
    assert content is not None
    return content


class _Slice(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: IO[bytes], member: Member) -> None:
        self._file = file
        self._at = member.offset
        self._end = member.offset + member.size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._at)
        data = self._file.read(min(len(buffer), self._end - self._at))
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


class _Bounded(io.RawIOBase):
    """Stops a bomb."""

    def __init__(self, file: IO[bytes], most: int, package: str) -> None:
        self._file = file
        self._left = most
        self._package = package

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self._left -= len(data)
        if self._left < 0:
            raise BadPackage(f"package {self._package} is larger than any package should be")
        return len(data)
