"""Compares the files of a workspace with those that it started with. Runs nothing in the box."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from holdfast.api.errors.runs import NoFiles
from holdfast.api.run.runs import Changes, FileChange
from holdfast.runs.workspace.git_trees import MAX_ARCHIVE, GitTrees, names_in
from holdfast.time_limit import time_limit

MAX_SHOWN: Final = 2 * 1024 * 1024
"""Bytes of a patch in a summary. The patch itself has no such limit."""
MAX_LISTED: Final = 50_000
_SECONDS: Final = 120.0
_PIECE: Final = 256 * 1024

T = TypeVar("T")


class Compared:
    """Two trees of files. Valid inside the block of `compare`."""

    def __init__(self, trees: GitTrees) -> None:
        self._trees = trees

    async def summary(self) -> Changes:
        return await _within(self._trees, self._summary)

    async def patch(self) -> AsyncIterator[bytes]:
        """Yields a patch for `git apply` that turns the first tree into the second."""
        with await _within(self._trees, self._trees.patch) as patch:
            while piece := await asyncio.to_thread(patch.read, _PIECE):
                yield piece

    async def changed_files(self, about: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Yields a tar archive with both versions of every changed file, and `about`: see `GitTrees.changed_files`."""
        refused = [_shown(path) for path in self._trees.refused[:MAX_LISTED]]
        with await _within(self._trees, lambda: self._trees.changed_files({**about, "refused": refused})) as archive:
            while piece := await asyncio.to_thread(archive.read, _PIECE):
                yield piece

    def _summary(self) -> Changes:
        files: list[FileChange] = []
        more = False
        for each in self._trees.changes():
            if len(files) == MAX_LISTED:
                more = True
                break
            path = _shown(each.path)
            files.append(FileChange(path, each.how, each.added is None, each.added or 0, each.removed or 0))
        with self._trees.patch() as patch:
            head = patch.read(MAX_SHOWN + 1)
        if cut := len(head) > MAX_SHOWN:
            head = head[: head.rfind(b"\n", 0, MAX_SHOWN) + 1]
        refused = tuple(_shown(path) for path in self._trees.refused[:MAX_LISTED])
        shown = head.decode("utf-8", "replace")
        exact = not cut and shown.encode() == head
        digest = self._trees.digest()
        return Changes(tuple(files), shown, more or cut, exact, self._trees.ignored, refused, digest)


@asynccontextmanager
async def compare(
    base: Path | None, now: AsyncIterable[bytes], *, tracked: Collection[bytes] | None = None
) -> AsyncIterator[Compared]:
    """`base` is the archive that the workspace started with, `now` the archive of its current files. For `tracked` see
    `GitTrees.load`.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-diff-", ignore_cleanup_errors=True) as folder:
        trees = GitTrees(Path(folder))
        with tempfile.TemporaryFile() as spool:
            async with time_limit(_SECONDS):
                await _spool(now, spool)
            await _within(trees, lambda: _load(trees, base, spool, tracked))
        yield Compared(trees)


async def tracked_files(begun: Path | None) -> frozenset[bytes]:
    """Returns the files that a workspace began with: of these, ignored ones count too."""
    if begun is None:
        return frozenset()

    def read() -> frozenset[bytes]:
        with begun.open("rb") as archive:
            return names_in(archive)

    return await asyncio.to_thread(read)


async def _spool(archive: AsyncIterable[bytes], spool: IO[bytes]) -> None:
    size = 0
    async for piece in archive:
        size += len(piece)
        if size > MAX_ARCHIVE:
            raise NoFiles(
                f"the workspace has more than {MAX_ARCHIVE >> 20} MB: too many to compare",
                hint="copy the files themselves: holdfast box cp",
            )
        await asyncio.to_thread(spool.write, piece)
    spool.seek(0)


def _load(trees: GitTrees, base: Path | None, now: IO[bytes], tracked: Collection[bytes] | None) -> None:
    if base is None:
        trees.load(None, now, tracked)
        return
    with base.open("rb") as before:
        trees.load(before, now, tracked)


async def _within(trees: GitTrees, work: Callable[[], T]) -> T:
    """Run `work` on a thread, within the time limit. It has always ended when this returns or raises."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        async with time_limit(_SECONDS):
            return await asyncio.shield(task)
    except (TimeoutError, asyncio.CancelledError) as stopped:
        trees.stop()
        await asyncio.wait((task,))
        if isinstance(stopped, asyncio.CancelledError):
            raise
        return task.result()


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
