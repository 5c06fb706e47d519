"""The first layer of a system: the essential packages, unpacked as far as dpkg needs to run, and additional files.

`dpkg-deb` opens the packages. Their contents become one tar archive, which the image store checks like any other: no
path leads out, and there are no devices. In a box with this layer, dpkg installs them properly.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from holdfast.images.errors import BadPackage
from holdfast.images.tar_stream import END, header, padding, whole

_PIECE: Final = 1 << 20
_MERGED: Final = re.compile(r"bin|sbin|lib(32|64|x32|o32)?")
"""Folders of the root that are links into /usr."""
_LEFT_OUT: Final = ("usr/share/doc/", "usr/share/man/", "usr/share/info/", "usr/share/locale/", "usr/share/lintian/")
_DATABASE: Final = "var/lib/dpkg"

Files = Mapping[str, tuple[int, bytes]]
"""Paths from the root, with mode and content."""


def essential_archive(packages: Sequence[Path], files: Files) -> Iterator[bytes]:
    """Yields the archive in pieces. Blocks. Raises `BadPackage`."""
    linked: set[str] = set()
    for name in ("usr", "etc", "var", "var/lib", _DATABASE, *(f"{_DATABASE}/{each}" for each in _FOLDERS)):
        yield header(name, kind=tarfile.DIRTYPE, mode=0o755)
    for name in ("bin", "sbin", "lib"):
        yield from _link(name, linked)
    for package in packages:
        yield from _unpacked(package, linked)
    for path in ("status", "available"):
        yield whole(f"{_DATABASE}/{path}", b"")
    for path, (mode, data) in files.items():
        yield whole(path, data, mode)
    yield END


_FOLDERS: Final = ("alternatives", "info", "parts", "triggers", "updates")


def _unpacked(package: Path, linked: set[str]) -> Iterator[bytes]:
    with subprocess.Popen(
        ["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as tar:
                for entry in tar:
                    yield from _entry(tar, entry, linked)
            if process.wait() != 0:
                raise BadPackage(f"{package.name} cannot be unpacked")
        except (tarfile.TarError, EOFError) as error:
            raise BadPackage(f"{package.name} cannot be unpacked: {error}") from None
        finally:
            process.kill()


def _entry(tar: tarfile.TarFile, entry: tarfile.TarInfo, linked: set[str]) -> Iterator[bytes]:
    first, _, rest = _plain(entry.name).partition("/")
    if not first or f"{first}/{rest}".startswith(_LEFT_OUT):
        return
    if _MERGED.fullmatch(first):
        if entry.issym() and not rest:
            return  # base-files also has these links
        yield from _link(first, linked)
    name = _merged(entry.name)
    link = _merged(entry.linkname) if entry.islnk() else entry.linkname
    size = entry.size if entry.isreg() else 0
    yield header(name, size, kind=entry.type, mode=entry.mode, modified=int(entry.mtime), link=link)
    if size and (content := tar.extractfile(entry)) is not None:
        while piece := content.read(_PIECE):
            yield piece
        yield padding(size)


def _link(name: str, linked: set[str]) -> Iterator[bytes]:
    if name not in linked:
        linked.add(name)
        yield header(f"usr/{name}", kind=tarfile.DIRTYPE, mode=0o755)
        yield header(name, kind=tarfile.SYMTYPE, mode=0o777, link=f"usr/{name}")


def _plain(name: str) -> str:
    return name.removeprefix("./").rstrip("/")


def _merged(name: str) -> str:
    """Returns the real path, given that /bin and similar folders are links into /usr."""
    plain = _plain(name)
    return f"usr/{plain}" if _MERGED.fullmatch(plain.partition("/")[0]) else plain


def in_pieces(parts: Iterable[bytes], least: int = _PIECE) -> Iterator[bytes]:
    """Joins pieces into fewer, larger ones."""
    kept = bytearray()
    for part in parts:
        kept += part
        if len(kept) >= least:
            yield bytes(kept)
            kept.clear()
    if kept:
        yield bytes(kept)
