"""Context files: files and folders of this machine, copied into the box under `.holdfast/context`.

They are copied, never mounted, so the box cannot change the originals. All of them are checked before any is copied.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import posixpath
import secrets
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.box.files import FileKind
from holdfast.api.errors.boxes import FileMissing, FileProblem
from holdfast.api.errors.interpreters import InvalidInterpreter
from holdfast.box_json import parse
from holdfast.interpreter.workspace.checkout import OURS
from holdfast.interpreter.workspace.repositories import allowed, printable

CONTEXT: Final = f"{OURS}/context"
SHORT: Final = "context"
"""A link to it in the workdir, unless something else has that name."""
MOST_FILES: Final = 100_000
MOST_BYTES: Final = 8 << 30
_MOST_PATHS: Final = 1000
_DEEPEST: Final = 100
_LONGEST_NAME: Final = 255
_MARK: Final = f"{OURS}/context.json"
_LARGEST_MARK: Final = 4096


@dataclass(frozen=True, slots=True)
class Survey:
    """The files to stage, as they were when they were scanned."""

    digest: str
    """The digest of all names, modes and contents."""
    items: Mapping[str, Path] = field(default_factory=dict)
    """The source of each name in the context."""
    files: int = 0
    size: int = 0


Digests = dict[tuple[int, ...], bytes]
"""Digests of files by their metadata, so that unchanged files are not read again."""


async def survey(paths: Sequence[str | Path], roots: Sequence[Path] | None, known: Digests) -> Survey:
    """Scan the files to stage. `roots` are the folders that may contain them; None allows all."""
    if len(paths) > _MOST_PATHS:
        raise InvalidInterpreter(f"{len(paths)} context paths are more than {_MOST_PATHS}", hint="give their folder")
    return await asyncio.to_thread(lambda: _scan(_by_name(paths, roots), known))


def _by_name(paths: Sequence[str | Path], roots: Sequence[Path] | None) -> dict[str, Path]:
    items: dict[str, Path] = {}
    for path in paths:
        name = Path(path).expanduser().absolute().name
        name = allowed(Path(path), roots).name if name in ("", "..") else name
        if not name or len(os.fsencode(name)) > _LONGEST_NAME or not name.isprintable():
            raise InvalidInterpreter(
                f"{printable(str(path))} has no valid name",
                hint="rename it, or give its folder",
            )
        if name in items:
            raise InvalidInterpreter(
                f"two context paths are called {printable(name)}: {items[name]} and {path}", hint="rename one of them"
            )
        # A path of the user may be a link, which is followed. Links inside a folder are copied.
        items[name] = allowed(Path(path), roots)
    return items


def _scan(items: Mapping[str, Path], known: Digests) -> Survey:
    whole, files, size = hashlib.sha256(), 0, 0
    for name, path in sorted(items.items()):
        for inner, found, status in _walk(path):
            if not stat.S_ISDIR(status.st_mode):
                files, size = files + 1, size + status.st_size
            if files > MOST_FILES or size > MOST_BYTES:
                raise InvalidInterpreter(
                    f"the context files are too large: more than {MOST_FILES:,} files, or {MOST_BYTES >> 30} GB",
                    hint="give only the parts that are needed, or use the volume",
                )
            parts = (os.fsencode(name), os.fsencode(inner), b"%o" % status.st_mode, _content(found, status, known))
            for each in parts:
                whole.update(b"%d:" % len(each) + each)
    return Survey(whole.hexdigest(), items, files, size)


def _walk(root: Path) -> Iterator[tuple[str, Path, os.stat_result]]:
    """Yield a file, or a folder and everything below it, in a fixed order. Raises for other kinds of files."""
    waiting = [("", root, 0)]
    while waiting:
        inner, path, depth = waiting.pop()
        try:
            status = path.lstat()
            below = sorted((each.name for each in path.iterdir()), reverse=True) if stat.S_ISDIR(status.st_mode) else []
        except OSError as error:
            raise _unreadable(path, error) from None
        if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            raise InvalidInterpreter(
                f"{printable(str(path))} is neither a file nor a folder", hint="give the files that are needed"
            )
        if stat.S_ISLNK(status.st_mode) and _leads_out(inner, path):
            raise InvalidInterpreter(
                f"{printable(str(path))} is a link that leads out of {printable(str(root))}",
                hint="give its target as another path, or replace the link with a copy",
            )
        if depth > _DEEPEST:
            raise InvalidInterpreter(f"{printable(str(path))} is more than {_DEEPEST} folders deep")
        yield inner, path, status
        waiting += [(posixpath.join(inner, name), path / name, depth + 1) for name in below]


def _leads_out(inner: str, link: Path) -> bool:
    """Whether a link leaves its folder. Links are copied as links, so the target would be missing in the box."""
    try:
        target = str(link.readlink())
    except OSError:
        return True
    return target.startswith("/") or posixpath.normpath(posixpath.join(inner, "..", target)).split("/")[0] == ".."


def _content(path: Path, status: os.stat_result, known: Digests) -> bytes:
    if stat.S_ISDIR(status.st_mode):
        return b""
    try:
        if stat.S_ISLNK(status.st_mode):
            return os.fsencode(path.readlink())
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if key not in known:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(descriptor, "rb") as file:
                known[key] = hashlib.file_digest(file, "sha256").digest()
        return known[key]
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> InvalidInterpreter:
    why = (error.strerror or str(error)).lower()
    return InvalidInterpreter(f"{printable(str(path))} cannot be read: {why}", hint="make it readable, or leave it out")


# --- in the box ---


async def staged(box: Box, workdir: str) -> str | None:
    """The digest of the staged files, or None if there are none."""
    try:
        if (await box.files.stat(posixpath.join(workdir, CONTEXT))).kind is not FileKind.FOLDER:
            return None
        mark: Any = parse(await box.files.read(posixpath.join(workdir, _MARK), length=_LARGEST_MARK))
    except (FileProblem, ValueError, RecursionError):
        return None
    digest = mark.get("digest") if isinstance(mark, dict) else None
    return digest if isinstance(digest, str) else None


async def stage(box: Box, workdir: str, wanted: Survey) -> None:
    """Replace the context files. Code in the box sees either all old or all new files."""
    target, mark = posixpath.join(workdir, CONTEXT), posixpath.join(workdir, _MARK)
    await own_folder(box, workdir)
    incoming = posixpath.join(workdir, f"{OURS}/incoming-{secrets.token_hex(6)}")
    await box.files.mkdir(incoming)
    try:
        for name, path in wanted.items.items():
            await box.files.upload(path, posixpath.join(incoming, name))
        await _remove(box, mark)
        await _remove(box, target)
        await box.files.move(incoming, target)
    except BaseException:
        await _remove(box, incoming)
        raise
    await box.files.write(mark, json.dumps({"digest": wanted.digest}).encode())


async def link(box: Box, workdir: str) -> None:
    """Create the link `context` to the staged files, unless the checkout has something of that name."""
    path = posixpath.join(workdir, SHORT)
    if await box.files.exists(posixpath.join(workdir, CONTEXT)) and not await box.files.exists(path):
        await box.exec(("ln", "-s", "--", CONTEXT, path), timeout=30)


async def unlink(box: Box, workdir: str) -> None:
    """Remove our link before a checkout that may contain a `context` of its own."""
    path = posixpath.join(workdir, SHORT)
    try:
        found = await box.files.stat(path)
    except FileProblem:
        return
    if found.kind is FileKind.LINK and found.target == CONTEXT:
        await box.files.delete(path)


async def own_folder(box: Box, workdir: str) -> None:
    """Create our folder. A link in its place, which code in the box may have made, is removed."""
    path = posixpath.join(workdir, OURS)
    try:
        if (await box.files.stat(path)).kind is not FileKind.FOLDER:
            await box.files.delete(path)
    except FileMissing:
        pass
    await box.files.mkdir(path)


async def _remove(box: Box, path: str) -> None:
    with contextlib.suppress(FileMissing):
        await box.files.delete(path, recursive=True)
