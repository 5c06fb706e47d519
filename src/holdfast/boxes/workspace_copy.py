"""Copies the workspace of one box to another, by value, through this process: neither box has to reach the other."""

from __future__ import annotations

import json
import posixpath
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, Final

from holdfast.api.box.box import Box
from holdfast.api.errors.boxes import CreateFailed
from holdfast.box_json import MOST_BYTES, parse

NOTES: Final = ".holdfast/workspace"
"""A folder in the home folder of a box: what Holdfast knows about the files of its workspace. It travels with them."""
_OLD_NOTES: Final = ".holdfast/threads"
_OLD_NOTE: Final = "prepared"
"""Where version 0.1.0 had them, in a folder for each thread."""
_TREE_SECONDS: Final = 1800.0
_SHORT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class FolderSummary:
    """What is below a folder. Folders with the same digest have the same names, permissions, times and contents."""

    digest: str
    entries: int
    bytes: int
    mode: int
    """Permissions of the folder itself, which are not part of the digest."""
    modified: int
    """Seconds."""


async def summarize(box: Box, folder: str) -> FolderSummary:
    return _summary(await _ask(box, folder, op="summarize"))


async def work_folders(box: Box) -> list[str]:
    """Returns the folders in which a box is worked: its workdir, and where its commands start, if its image says so."""
    workdir = box.spec.workdir
    if not await box.files.exists(workdir):
        found, here = [], None
    else:
        found, here = [workdir], await _ask(box, workdir, op="locate")
    start = await _ask(box, None, op="locate")
    path = str(start.get("path"))
    is_other = here is None or start.get("identity") != here.get("identity")
    if is_other and _is_folder_name(path) and not any(PurePosixPath(path).is_relative_to(each) for each in found):
        found.append(path)
    return found


def _is_folder_name(path: str) -> bool:
    """Returns whether this is a canonical path. The box has told it."""
    return path.startswith("/") and path != "/" and posixpath.normpath(path) == path and path.isprintable()


async def copy_folder(
    source: Box, folder: str, target: Box, to: str, summary: FolderSummary, advance: Callable[[int], None]
) -> FolderSummary:
    """Replace what is in a folder of a box by what is in a folder of another box. Returns what it has then."""
    await target.files.mkdir(to)
    await _ask(target, to, op="clear")
    await target.files.upload_tar(_counted(source.files.download_tar(folder), advance), to)
    return _summary(await _ask(target, to, op="finish", mode=summary.mode, modified=summary.modified))


async def is_noted(box: Box, home: str, thread: str) -> bool:
    """Returns whether the workspace of a thread was unpacked in this box. Older versions wrote the note elsewhere."""
    return await box.files.exists(f"{home}/{NOTES}/{thread}") or await box.files.exists(
        f"{home}/{_OLD_NOTES}/{thread}/{_OLD_NOTE}"
    )


async def copy_notes(source: Box, target: Box) -> None:
    """Copy what Holdfast knows about the files of a workspace."""
    here, there = await home_of(source), await home_of(target)
    if await source.files.exists(f"{here}/{NOTES}"):
        await target.files.upload_tar(source.files.download_tar(f"{here}/{NOTES}"), f"{there}/{NOTES}")
    if await source.files.exists(f"{here}/{_OLD_NOTES}"):
        for each in await source.files.list(f"{here}/{_OLD_NOTES}"):
            old = f"{here}/{_OLD_NOTES}/{each.name}/{_OLD_NOTE}"
            if await source.files.exists(old) and not await target.files.exists(f"{there}/{NOTES}/{each.name}"):
                await target.files.write(f"{there}/{NOTES}/{each.name}", await source.files.read(old))


async def home_of(box: Box) -> str:
    """Returns the home folder of the user of a box. Raises `CreateFailed` if it has none."""
    done = await box.exec(["sh", "-c", 'printf %s "$HOME"'], timeout=_SHORT_SECONDS, max_output=MOST_BYTES)
    home = done.text.rstrip("/")
    if not done.ok or not home.startswith("/"):
        raise CreateFailed(f"box {box.id} has no home folder: its HOME is {done.text[:200]!r}")
    return home


async def _counted(pieces: AsyncIterator[bytes], advance: Callable[[int], None]) -> AsyncIterator[bytes]:
    async for piece in pieces:
        advance(len(piece))
        yield piece


async def _ask(box: Box, folder: str | None, **request: Any) -> dict[str, Any]:
    """Run the guest's program in a folder of a box, or where its commands start. The answer of a box is checked."""
    command = [*await box.python(), "-I", "-S", "-B", "-c", _program(), json.dumps(request)]
    done = await box.exec(command, cwd=folder, timeout=_TREE_SECONDS, max_output=MOST_BYTES)
    try:
        answer = parse(done.stdout)
    except ValueError:
        shown = done.stderr.decode(errors="replace").strip()[-300:]
        raise CreateFailed(
            f"the files of box {box.id} cannot be read: {shown or f'exit code {done.exit_code}'}"
        ) from None
    if not isinstance(answer, dict):
        raise CreateFailed(f"the files of box {box.id} cannot be read: it answered something else")
    if "problem" in answer:
        raise CreateFailed(f"the files of box {box.id} cannot be moved: {str(answer['problem'])[:500]}")
    return answer


def _summary(answer: dict[str, Any]) -> FolderSummary:
    try:
        digest, numbers = answer["digest"], [answer[name] for name in ("entries", "bytes", "mode", "modified")]
    except KeyError as missing:
        raise CreateFailed(f"a box answered without {missing}") from None
    if not isinstance(digest, str) or not all(type(number) is int for number in numbers):
        raise CreateFailed("a box sent an invalid summary of its files")
    return FolderSummary(digest, *numbers)


@cache
def _program() -> str:
    return resources.files("holdfast.guest").joinpath("folder_tree.py").read_text()
