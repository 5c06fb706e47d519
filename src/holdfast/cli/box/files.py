"""`holdfast box cp`: copies files and folders into a box and out of it. What comes out of a box is not trusted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Final

from holdfast.cli.errors import CommandError, usage_error
from holdfast.cli.exits import Exit
from holdfast.cli.names import open_box
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parsing.parameters import Argument
from holdfast.cli.session import ask
from holdfast.cli.terminal.console import ACCENT, Cell, hint, is_terminal, note, printable, write_field, write_json
from holdfast.cli.terminal.pipes import InputPipe, OutputPipe
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.boxes import Box, FileInfo
    from holdfast.client import Client

_PIECE: Final = 1 << 18
_SHOW_BAR_FROM: Final = 8 << 20
_MOST_WARNINGS: Final = 5

OnBytes = Callable[[int], None]
"""Called with the number of bytes just copied."""


@dataclass(frozen=True, slots=True)
class InBox:
    box: str
    path: str


@dataclass(frozen=True, slots=True)
class Here:
    path: Path
    text: str
    """The path as the user typed it: a / at its end means a folder."""


@dataclass(frozen=True, slots=True)
class Piped:
    """`-`: a tar archive on standard input or output."""


Place = InBox | Here | Piped


def copy(
    source: Annotated[str, Argument(metavar="SOURCE", help="BOX:PATH, a local path, or -.", show_default=False)],
    target: Annotated[str, Argument(metavar="TARGET", help="BOX:PATH, a local path, or -.", show_default=False)],
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Copy files and folders between this machine and a box. One of SOURCE and TARGET is BOX:PATH.

    If TARGET is an existing folder, the copy goes into it under its own name; otherwise it becomes TARGET. Existing
    folders are merged. An existing .git on this machine is left unchanged, because a box could put programs there that
    git runs as you. Relative paths in the box start at its workdir. - is a tar archive on standard input or output.

    \b
    holdfast box cp src b-1:project
    holdfast box cp b-1:project/report.html .
    holdfast box cp b-1:/var/log - | tar tf -
    """
    here, there = parse_place(source), parse_place(target)
    match here, there:
        case InBox(box, path), Here() | Piped():
            copied = ask(where, lambda client: _copy_out(client, box, path, there))
        case Here() | Piped(), InBox(box, path):
            copied = ask(where, lambda client: _copy_in(client, here, box, path))
        case _:
            raise usage_error(
                f"one of {source!r} and {target!r} must be in a box, and the other on this machine",
                "write a path in a box as BOX:PATH, and a local path with a colon as ./a:b",
            )
    if isinstance(there, Piped):
        return
    if as_json:
        write_json(copied)
    elif is_terminal():
        size = f"  {describe_size(copied['size'])}" if isinstance(copied["size"], int) else ""
        write_field("copied", str(copied["target"]), Cell(size, "dim"))


def parse_place(text: str) -> Place:
    """Parse `BOX:PATH`, `-`, or a local path. A text with a / before its first colon is a local path."""
    if text == "-":
        return Piped()
    box, colon, path = text.partition(":")
    if colon and box and not box.startswith((".", "~")) and "/" not in box:
        return InBox(box, path or ".")
    return Here(Path(text), text)


# --- into the box ---


async def _copy_in(client: Client, source: Place, name: str, path: str) -> dict[str, object]:
    async with await open_box(client, name) as box:
        if isinstance(source, Piped):
            await box.files.upload_tar(InputPipe(sys.stdin.fileno()), path)
            return {"target": f"{box.id}:{path}", "size": None}
        assert isinstance(source, Here)
        kind = _kind_here(source)
        target = await _target_in_box(box, source, path, of_folder=stat.S_ISDIR(kind.st_mode))
        if stat.S_ISDIR(kind.st_mode):
            with spinner(f"{source.text} → {box.id}"):
                await box.files.upload(source.path, target)
            return {"target": f"{box.id}:{target}", "size": None}
        with progress_bar(source.path.name, kind.st_size) as on_bytes:
            await box.files.write(target, _pieces(source.path, on_bytes), mode=stat.S_IMODE(kind.st_mode))
        return {"target": f"{box.id}:{target}", "size": kind.st_size}


def _kind_here(source: Here) -> os.stat_result:
    try:
        kind = source.path.stat()
        if not stat.S_ISDIR(kind.st_mode):
            with source.path.open("rb"):
                pass
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise CommandError(
            f"{source.text}: {(error.strerror or str(error)).lower()}",
            next_step="write a path in a box as BOX:PATH" if missing else None,
            exit=Exit.NOT_FOUND if missing else Exit.FAILURE,
        ) from None
    if not (stat.S_ISDIR(kind.st_mode) or stat.S_ISREG(kind.st_mode)):
        raise CommandError(f"{source.text} is neither a file nor a folder")
    return kind


async def _target_in_box(box: Box, source: Here, path: str, *, of_folder: bool) -> str:
    """`path` itself, or the source's name inside it if it is a folder. `folder/.` means the folder's contents."""
    there = await _stat_following(box, path)
    if there is not None and there.kind == "folder":
        if of_folder and source.text.endswith("/."):
            return path
        return str(PurePosixPath(path) / source.path.resolve().name)
    if there is None and path.endswith("/") and not of_folder:
        raise CommandError(
            f"{path} is not a folder in the box", next_step=f"holdfast box exec {box.id} -- mkdir -p {path}"
        )
    if there is not None and of_folder:
        raise CommandError(f"{path} is a file in the box, and a folder cannot replace it", exit=Exit.CONFLICT)
    return path


async def _stat_following(box: Box, path: str) -> FileInfo | None:
    from holdfast.api.errors.boxes import FileMissing

    try:
        found = await box.files.stat(path)
        # The /. makes the box follow a link to a folder, by its own rules.
        return await box.files.stat(f"{path.rstrip('/')}/.") if found.kind == "link" else found
    except FileMissing:
        return None


async def _pieces(path: Path, on_bytes: OnBytes) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while data := await asyncio.to_thread(file.read, _PIECE):
            yield data
            on_bytes(len(data))


# --- out of the box ---


async def _copy_out(client: Client, name: str, path: str, target: Place) -> dict[str, object]:
    async with await open_box(client, name) as box:
        if isinstance(target, Piped):
            if is_terminal():
                raise usage_error(
                    "refusing to write an archive to a terminal", f"holdfast box cp {name}:{path} - > files.tar"
                )
            out = OutputPipe(1)
            async for data in box.files.download_tar(path):
                await out.write(data)
            await out.flush()
            return {}
        assert isinstance(target, Here)
        # The box says so, so we trust it for the choice of a name only.
        found = await box.files.stat(path)
        if found.kind == "link":
            found = await _stat_following(box, path) or found
        final = _target_here(target, path, found)
        size = await _fetch(box, path, found, final)
        return {"target": str(final), "size": size}


def _target_here(target: Here, path: str, found: FileInfo) -> Path:
    if target.path.is_dir():
        name = PurePosixPath(path).name
        if path.endswith("/.") or name in ("", ".", ".."):
            return target.path
        return target.path / name
    if target.text.endswith("/") and found.kind != "folder":
        raise CommandError(f"{target.text} is not a local folder", next_step=f"mkdir -p {target.text}")
    if not target.path.absolute().parent.is_dir():
        raise CommandError(
            f"{target.path.parent} is not a local folder",
            next_step=f"mkdir -p {target.path.parent}",
            exit=Exit.NOT_FOUND,
        )
    return target.path


async def _fetch(box: Box, path: str, found: FileInfo, final: Path) -> int | None:
    """Download into a folder beside the target, and move it to the target once it is complete."""
    temporary = _temporary_folder(final)
    try:
        arrived = temporary / "arrived"
        if found.kind == "file":
            with progress_bar(found.name, found.size) as on_bytes:
                size = await _save(box, path, arrived, on_bytes)
            arrived.chmod(found.mode & 0o777)
            merge(arrived, final)
            return size
        with spinner(f"{box.id}:{path}"):
            await box.files.download(path, arrived)
            received = await asyncio.to_thread(find_repositories, arrived)
            kept = await asyncio.to_thread(merge, arrived, final)
        _warn(final, received, kept)
        return None
    finally:
        from holdfast.guest.init.search import remove_tree

        with contextlib.suppress(OSError):
            remove_tree(str(temporary))  # at any depth


def _warn(final: Path, received: list[Path], kept: list[Path]) -> None:
    """Warn of git repositories from a box: git runs the programs that they name, as the user."""
    for place in kept[:_MOST_WARNINGS]:
        note("left out", f"{place} stays as it is", hint("  apply file changes with holdfast diff THREAD | git apply"))
    new = [place for each in received if (place := final / each) not in kept]
    for place in new[:_MOST_WARNINGS]:
        note("careful", f"{place} comes from the box: git in it runs the programs in its settings and hooks as you")
    if (more := len(kept[_MOST_WARNINGS:]) + len(new[_MOST_WARNINGS:])) > 0:
        note("careful", f"the box sent {more} more repositories")


def _temporary_folder(final: Path) -> Path:
    """A new folder on the same disk as the target."""
    parent = final.absolute() if final.is_dir() else final.absolute().parent
    try:
        return Path(tempfile.mkdtemp(prefix=".holdfast-", dir=parent))
    except OSError as error:
        raise CommandError(f"cannot write to {parent}: {(error.strerror or str(error)).lower()}") from None


async def _save(box: Box, path: str, target: Path, on_bytes: OnBytes) -> int:
    size = 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        async for data in box.files.stream(path):
            await asyncio.to_thread(file.write, data)
            size += len(data)
            on_bytes(len(data))
    return size


def find_repositories(folder: Path) -> list[Path]:
    """Every `.git` below a folder, relative to it."""
    found, waiting = [], [folder]
    while waiting:
        for entry in os.scandir(waiting.pop()):
            path = Path(entry.path)
            if _is_git(entry.name):
                found.append(path.relative_to(folder))
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(path)
    return sorted(found)


def _is_git(name: str) -> bool:
    return name.casefold() == ".git"  # some file systems ignore case


def merge(source: Path, target: Path) -> list[Path]:
    """Move everything below `source` to `target`, replacing files, merging folders, following no link at the target.

    An existing link at the target is the user's own, and files from a box must not be written through it. Nor into an
    existing `.git`: its settings and hooks are programs that git runs. Returns those, which are left unchanged.
    """
    if not os.path.lexists(target):
        source.rename(target)
        return []
    if source.is_symlink() or not source.is_dir():
        if target.is_dir() and not target.is_symlink():
            raise CommandError(f"{target} is a local folder, and a file cannot replace it", exit=Exit.CONFLICT)
        if target.exists() and not target.is_file() and not target.is_dir():  # such as /dev/null, or /dev/stdout
            raise CommandError(
                f"{target} is a device or a pipe, and a file cannot replace it",
                next_step="copy to a file, or to - for an archive on standard output",
                exit=Exit.CONFLICT,
            )
        source.replace(target)
        return []
    if target.is_symlink() or not target.is_dir():
        raise CommandError(f"{target} is not a local folder, and a folder cannot replace it", exit=Exit.CONFLICT)
    kept = []
    for each in list(source.iterdir()):
        place = target / each.name
        if _is_git(each.name) and os.path.lexists(place):
            kept.append(place)
        else:
            kept += merge(each, place)
    return kept


# --- progress ---


@contextlib.contextmanager
def progress_bar(name: str, size: int) -> Iterator[OnBytes]:
    """A progress progress_bar on a terminal, for large files."""
    if size < _SHOW_BAR_FROM or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Amount(TextColumn):
        def render(self, task: Task) -> Text:
            speed = f"  {describe_size(int(task.speed))}/s" if task.speed else ""
            return Text(f"{describe_size(int(task.completed))} of {describe_size(size)}{speed}")

    columns = (
        TextColumn("  {task.description}", markup=False),
        BarColumn(complete_style=ACCENT, finished_style=ACCENT),
        Amount(""),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(printable(name[:32]), total=size)
        yield lambda count: progress.advance(task, count)


@contextlib.contextmanager
def spinner(what: str) -> Iterator[None]:
    """A spinner on a terminal, for work of unknown length."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False, markup=False).status(printable(f"copying {what}")):
        yield
