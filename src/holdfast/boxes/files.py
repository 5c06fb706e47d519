"""Files of a box. Every path is the box's own: resolved inside it, as its user, never on the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from holdfast.api.files import FileInfo as FileInfo
from holdfast.api.files import FileKind as FileKind
from holdfast.api.files import Match as Match
from holdfast.api.files import Replaced as Replaced

MAX_READ: Final = 64 * 1024 * 1024
"""Bytes that `read` loads at once. Larger files are streamed."""


class Files(ABC):
    """Relative paths start at the box's workdir. What fails raises a `FileProblem` of its kind."""

    @abstractmethod
    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The file, or a part of it. Raises `OutputTooLarge` beyond `MAX_READ`."""

    @abstractmethod
    def stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        """The file, piece by piece."""

    @abstractmethod
    async def write(self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644) -> None:
        """Write the whole file, or nothing of it: readers see the old one until the new one is complete.

        Folders on the way are made.
        """

    @abstractmethod
    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """What is in a folder, sorted by name."""

    @abstractmethod
    async def stat(self, path: str) -> FileInfo:
        """Does not follow a link at the end of the path."""

    async def exists(self, path: str) -> bool:
        from holdfast.boxes.errors import FileMissing, WrongFileKind

        try:
            await self.stat(path)
        except (FileMissing, WrongFileKind):
            return False
        return True

    @abstractmethod
    async def mkdir(self, path: str) -> None:
        """Make the folder and those above it. One that is there is fine."""

    @abstractmethod
    async def move(self, source: str, target: str) -> None:
        """Rename, replacing a file that is at the target. A folder there is never replaced."""

    @abstractmethod
    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, a link, an empty folder; with `recursive`, a folder and all in it. Never follows links."""

    @abstractmethod
    async def chmod(self, path: str, mode: int) -> None: ...

    @abstractmethod
    async def find(self, path: str = ".", pattern: str = "*", *, limit: int = 10_000) -> Sequence[FileInfo]:
        """Everything below a folder whose name, or path from there, matches a glob. Sorted; links are not followed."""

    @abstractmethod
    async def search(
        self, pattern: str, path: str = ".", *, glob: str = "*", regex: bool = False, limit: int = 1_000
    ) -> Sequence[Match]:
        """Lines with a text (or a regular expression) in the text files below a folder."""

    @abstractmethod
    async def replace(
        self, pattern: str, replacement: str, paths: Sequence[str], *, regex: bool = False
    ) -> Sequence[Replaced]:
        """Replace a text (or a regular expression) in these files, each whole or not at all; says where how often."""

    @abstractmethod
    async def upload(self, source: Path, path: str) -> None:
        """Put a file or folder of this machine into the box, as `path`."""

    @abstractmethod
    async def download(self, path: str, target: Path) -> None:
        """Bring a file or folder of the box to this machine, as `target`, which must not exist yet.

        What would land outside of it, and things that are no files, folders or links, are refused: `HostileArchive`.
        """

    @abstractmethod
    async def upload_tar(self, archive: AsyncIterable[bytes], path: str) -> None:
        """Unpack a tar archive, as it comes, into a folder."""

    @abstractmethod
    def download_tar(self, path: str) -> AsyncIterator[bytes]:
        """A file or folder as a tar archive. The bytes are the box's: whoever unpacks them has to distrust them."""
