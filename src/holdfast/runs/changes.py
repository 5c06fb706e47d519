"""What became of a workspace: its files now, against those it was first prepared with. Nothing is run in the box.

Both sides are archives, and the box's is hostile: members are read one by one, within limits, and nothing is unpacked.
"""

from __future__ import annotations

import asyncio
import difflib
import tarfile
import tempfile
from collections.abc import AsyncIterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from holdfast.runs.errors import NoFiles

MAX_ARCHIVE: Final = 1024 * 1024 * 1024
MAX_FILE: Final = 512 * 1024
"""Larger files are named, not shown."""
MAX_LINES: Final = 20_000
"""Of a file that is compared by line."""
MAX_PATCH: Final = 2 * 1024 * 1024
MAX_FILES: Final = 50_000
_SECONDS: Final = 120.0
_LEFT_OUT: Final = frozenset((".git", "__pycache__", "node_modules", ".pytest_cache"))


@dataclass(frozen=True, slots=True)
class FileChange:
    path: str
    how: str
    """added, changed or deleted."""
    binary: bool = False
    """Not shown: it is no text, or too large."""
    added: int = 0
    """Lines."""
    removed: int = 0


@dataclass(frozen=True, slots=True)
class Changes:
    files: tuple[FileChange, ...]
    patch: str
    """A unified diff."""
    truncated: bool = False
    """There is more than fits."""


@dataclass(frozen=True, slots=True)
class _Content:
    size: int
    data: bytes | None
    """None where it is too large to be compared by line; then its size and time tell."""
    mode: int
    modified: float
    link: str | None = None


async def compare(base: Path | None, now: AsyncIterable[bytes]) -> Changes:
    """`base`: the archive that the workspace began with; `now`: its files as an archive."""
    async with asyncio.timeout(_SECONDS):
        with tempfile.TemporaryFile() as spool:
            size = 0
            async for piece in now:
                size += len(piece)
                if size > MAX_ARCHIVE:
                    raise NoFiles(f"the workspace has more than {MAX_ARCHIVE} bytes: too many to be compared")
                await asyncio.to_thread(spool.write, piece)
            spool.seek(0)
            return await asyncio.to_thread(_compare, base, spool)


def _compare(base: Path | None, now: IO[bytes]) -> Changes:
    before: dict[str, _Content] = {}
    cut = False
    if base is not None:
        with base.open("rb") as file:
            before, cut = _read(file)
    after, cut_after = _read(now)
    return difference(before, after, truncated=cut or cut_after)


def _read(archive: IO[bytes]) -> tuple[dict[str, _Content], bool]:
    """The files of an archive by path, and whether there are more than fit."""
    found: dict[str, _Content] = {}
    try:
        with tarfile.open(fileobj=archive, mode="r:*") as tar:
            for member in tar:
                parts = [part for part in member.name.split("/") if part not in ("", ".")]
                if not parts or ".." in parts or not _LEFT_OUT.isdisjoint(parts):
                    continue
                if len(found) >= MAX_FILES:
                    return found, True
                path = "/".join(parts)
                if member.issym():
                    found[path] = _Content(0, None, 0, 0, member.linkname)
                elif member.isreg():
                    data = None
                    if member.size <= MAX_FILE and (stream := tar.extractfile(member)) is not None:
                        data = stream.read(MAX_FILE + 1)
                    found[path] = _Content(member.size, data, member.mode & 0o111, member.mtime)
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise NoFiles(f"the files cannot be compared: {error}") from None
    return found, False


def difference(before: dict[str, _Content], after: dict[str, _Content], *, truncated: bool = False) -> Changes:
    """Pure."""
    files: list[FileChange] = []
    pieces: list[str] = []
    room = MAX_PATCH
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is not None and new is not None and _same(old, new):
            continue
        how = "added" if old is None else "deleted" if new is None else "changed"
        left, right = _lines(old), _lines(new)
        if left is None or right is None:
            files.append(FileChange(path, how, binary=True))
            piece = f"Binary file {path} {how}\n"
        else:
            piece, added, removed = _unified(path, old is None, new is None, left, right)
            files.append(FileChange(path, how, False, added, removed))
        if len(piece) > room:
            truncated = True
            continue
        room -= len(piece)
        pieces.append(piece)
    return Changes(tuple(files), "".join(pieces), truncated)


def _same(old: _Content, new: _Content) -> bool:
    if old.link is not None or new.link is not None:
        return old.link == new.link
    if old.data is None or new.data is None:
        return old.size == new.size and int(old.modified) == int(new.modified)
    return old.data == new.data


def _lines(content: _Content | None) -> list[str] | None:
    """None where it cannot be shown as text."""
    if content is None:
        return []
    if content.link is not None:
        return [f"→ {content.link}\n"]
    if content.data is None or b"\0" in content.data:
        return None
    try:
        lines = content.data.decode().splitlines(keepends=True)
    except UnicodeDecodeError:
        return None
    return lines if len(lines) <= MAX_LINES else None


def _unified(path: str, is_new: bool, is_gone: bool, left: list[str], right: list[str]) -> tuple[str, int, int]:
    shown = path.encode("utf-8", "replace").decode()
    lines = list(
        difflib.unified_diff(
            left, right, "/dev/null" if is_new else f"a/{shown}", "/dev/null" if is_gone else f"b/{shown}"
        )
    )
    added = sum(1 for line in lines[2:] if line.startswith("+"))
    removed = sum(1 for line in lines[2:] if line.startswith("-"))
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    return f"diff --git a/{shown} b/{shown}\n{text}", added, removed
