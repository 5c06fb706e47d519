"""`holdfast box cp`: files and folders into a box, and out of it. What comes out of a box is not trusted."""

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

from holdfast.cli.box.spec import wrong
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.cli.options import JsonOption, Where
from holdfast.cli.parameters import Argument
from holdfast.cli.session import ask, open_box
from holdfast.cli.terminal.console import ACCENT, Cell, hint, is_terminal, note, printable, write_field, write_json
from holdfast.cli.terminal.pipes import Inlet, Outlet
from holdfast.cli.terminal.sizes import describe_size

if TYPE_CHECKING:
    from holdfast.boxes import Box, FileInfo
    from holdfast.client import Client

_PIECE: Final = 1 << 18
_WORTH_A_BAR: Final = 8 << 20
_MOST_TOLD: Final = 5

Moved = Callable[[int], None]
"""Told of bytes as they go."""


@dataclass(frozen=True, slots=True)
class InBox:
    box: str
    path: str


@dataclass(frozen=True, slots=True)
class Here:
    path: Path
    text: str
    """As it was given: a / at its end means a folder."""


@dataclass(frozen=True, slots=True)
class Piped:
    """`-`: a tar archive on standard input or output."""


Place = InBox | Here | Piped


def copy(
    source: Annotated[str, Argument(metavar="SOURCE", help="BOX:PATH, a path here, or -.", show_default=False)],
    target: Annotated[str, Argument(metavar="TARGET", help="BOX:PATH, a path here, or -.", show_default=False)],
    *,
    where: Where,
    as_json: JsonOption = False,
) -> None:
    """Copy files and folders between this machine and a box. One of SOURCE and TARGET is BOX:PATH.

    Into a folder that is there it goes by its own name; else it becomes TARGET. Folders that are there already are
    added to, but for a .git here, which stays as it is: a box could put programs there that git runs as you. Relative
    paths in the box begin at its workdir. - is a tar archive on standard input or output.

    \b
    holdfast box cp src b-1:project
    holdfast box cp b-1:project/report.html .
    holdfast box cp b-1:/var/log - | tar tf -
    """
    here, there = parse_place(source), parse_place(target)
    match here, there:
        case InBox(box, path), Here() | Piped():
            copied = ask(where, lambda client: _out(client, box, path, there))
        case Here() | Piped(), InBox(box, path):
            copied = ask(where, lambda client: _in(client, here, box, path))
        case _:
            raise wrong(
                f"one of {source!r} and {target!r} has to be in a box, the other here",
                "write the one in the box as BOX:PATH; a path here with a colon as ./a:b",
            )
    if isinstance(there, Piped):
        return
    if as_json:
        write_json(copied)
    elif is_terminal():
        size = f"  {describe_size(copied['size'])}" if isinstance(copied["size"], int) else ""
        write_field("copied", str(copied["target"]), Cell(size, "dim"))


def parse_place(text: str) -> Place:
    """`BOX:PATH`, `-`, or a path here. What has a / before its first colon is a path here."""
    if text == "-":
        return Piped()
    box, colon, path = text.partition(":")
    if colon and box and not box.startswith((".", "~")) and "/" not in box:
        return InBox(box, path or ".")
    return Here(Path(text), text)


# --- into the box ---


async def _in(client: Client, source: Place, name: str, path: str) -> dict[str, object]:
    async with await open_box(client, name) as box:
        if isinstance(source, Piped):
            await box.files.upload_tar(Inlet(sys.stdin.fileno()), path)
            return {"target": f"{box.id}:{path}", "size": None}
        assert isinstance(source, Here)
        kind = _kind_here(source)
        target = await _target_in_box(box, source, path, of_folder=stat.S_ISDIR(kind.st_mode))
        if stat.S_ISDIR(kind.st_mode):
            with working(f"{source.text} → {box.id}"):
                await box.files.upload(source.path, target)
            return {"target": f"{box.id}:{target}", "size": None}
        with bar(source.path.name, kind.st_size) as moved:
            await box.files.write(target, _pieces(source.path, moved), mode=stat.S_IMODE(kind.st_mode))
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
            next_step="a path in a box is written BOX:PATH" if missing else None,
            exit=Exit.NOT_FOUND if missing else Exit.FAILURE,
        ) from None
    if not (stat.S_ISDIR(kind.st_mode) or stat.S_ISREG(kind.st_mode)):
        raise CommandError(f"{source.text} is neither a file nor a folder")
    return kind


async def _target_in_box(box: Box, source: Here, path: str, *, of_folder: bool) -> str:
    """`path` itself, or the source's name in it where it is a folder. `folder/.` means what is in the folder."""
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
        raise CommandError(f"{path} is a file in the box, and a folder cannot take its place", exit=Exit.CONFLICT)
    return path


async def _stat_following(box: Box, path: str) -> FileInfo | None:
    from holdfast.api.errors.boxes import FileMissing

    try:
        found = await box.files.stat(path)
        # A / makes the box follow a link to a folder, by its own rules.
        return await box.files.stat(f"{path.rstrip('/')}/.") if found.kind == "link" else found
    except FileMissing:
        return None


async def _pieces(path: Path, moved: Moved) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while data := await asyncio.to_thread(file.read, _PIECE):
            yield data
            moved(len(data))


# --- out of the box ---


async def _out(client: Client, name: str, path: str, target: Place) -> dict[str, object]:
    async with await open_box(client, name) as box:
        if isinstance(target, Piped):
            if is_terminal():
                raise wrong("an archive is nothing for a terminal", f"holdfast box cp {name}:{path} - > files.tar")
            out = Outlet(1)
            async for data in box.files.download_tar(path):
                await out.write(data)
            await out.flush()
            return {}
        assert isinstance(target, Here)
        # Asked of the box, so believed for the choice of a name and for no more than that.
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
        raise CommandError(f"{target.text} is not a folder here", next_step=f"mkdir -p {target.text}")
    if not target.path.absolute().parent.is_dir():
        raise CommandError(
            f"{target.path.parent} is not a folder here",
            next_step=f"mkdir -p {target.path.parent}",
            exit=Exit.NOT_FOUND,
        )
    return target.path


async def _fetch(box: Box, path: str, found: FileInfo, final: Path) -> int | None:
    """Bring it to a place of its own beside the target, and only when it is whole put it there."""
    aside = _beside(final)
    try:
        arrived = aside / "arrived"
        if found.kind == "file":
            with bar(found.name, found.size) as moved:
                size = await _save(box, path, arrived, moved)
            arrived.chmod(found.mode & 0o777)
            merge(arrived, final)
            return size
        with working(f"{box.id}:{path}"):
            await box.files.download(path, arrived)
            came = await asyncio.to_thread(find_repositories, arrived)
            kept = await asyncio.to_thread(merge, arrived, final)
        _warn(final, came, kept)
        return None
    finally:
        from holdfast.guest.search import remove_tree

        with contextlib.suppress(OSError):
            remove_tree(str(aside))  # however deep it is


def _warn(final: Path, came: list[Path], kept: list[Path]) -> None:
    """Of repositories: git runs programs that they name, as whoever looks at them."""
    for place in kept[:_MOST_TOLD]:
        note("left out", f"{place} stays as it is", hint("  holdfast diff THREAD | git apply takes changes of files"))
    new = [place for each in came if (place := final / each) not in kept]
    for place in new[:_MOST_TOLD]:
        note("careful", f"{place} comes from the box: git there runs what its settings and hooks name, as you")
    if (more := len(kept[_MOST_TOLD:]) + len(new[_MOST_TOLD:])) > 0:
        note("careful", f"the box has sent {more} more repositories")


def _beside(final: Path) -> Path:
    """A folder of our own on the same disk as the target."""
    parent = final.absolute() if final.is_dir() else final.absolute().parent
    try:
        return Path(tempfile.mkdtemp(prefix=".holdfast-", dir=parent))
    except OSError as error:
        raise CommandError(f"cannot write to {parent}: {(error.strerror or str(error)).lower()}") from None


async def _save(box: Box, path: str, target: Path, moved: Moved) -> int:
    size = 0
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        async for data in box.files.stream(path):
            await asyncio.to_thread(file.write, data)
            size += len(data)
            moved(len(data))
    return size


def find_repositories(folder: Path) -> list[Path]:
    """Each `.git` below a folder, from there."""
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
    return name.casefold() == ".git"  # not every disk tells the cases apart


def merge(source: Path, target: Path) -> list[Path]:
    """Move everything below `source` to `target`, replacing files, adding to folders, following no link at the target.

    A link that is already at the target is the caller's own; what came from a box must not be written through it. Nor
    into a `.git` that is there: its settings and hooks are programs that git runs. Returns those, which stay as they
    are.
    """
    if not os.path.lexists(target):
        source.rename(target)
        return []
    if source.is_symlink() or not source.is_dir():
        if target.is_dir() and not target.is_symlink():
            raise CommandError(f"{target} is a folder here, and a file cannot take its place", exit=Exit.CONFLICT)
        source.replace(target)
        return []
    if target.is_symlink() or not target.is_dir():
        raise CommandError(f"{target} is not a folder here, and a folder cannot take its place", exit=Exit.CONFLICT)
    kept = []
    for each in list(source.iterdir()):
        place = target / each.name
        if _is_git(each.name) and os.path.lexists(place):
            kept.append(place)
        else:
            kept += merge(each, place)
    return kept


# --- what a person sees meanwhile ---


@contextlib.contextmanager
def bar(name: str, size: int) -> Iterator[Moved]:
    """A bar on a terminal, where there is enough to wait for."""
    if size < _WORTH_A_BAR or not sys.stderr.isatty():
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
def working(what: str) -> Iterator[None]:
    """Says on a terminal that something is going on whose end is not known."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False, markup=False).status(printable(f"copying {what}")):
        yield
