"""The files of a box: the contract, and the types of requests. Times are UTC milliseconds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from holdfast.api.document import Document, Limits
from holdfast.api.limits import PathText, StrictBool, without_nul

MAX_READ: Final = 64 * 1024 * 1024
"""The most bytes that `read` returns. Use `stream` for larger files."""


class FileKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class FileInfo(Document):
    path: str
    kind: FileKind
    size: int
    mode: int
    """Permission bits."""
    modified_at: int
    target: str | None = None
    """Where a link points."""

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class Match(Document):
    """A line that a search found."""

    path: str
    line: int
    """From 1."""
    text: str


@dataclass(frozen=True, slots=True)
class Replaced(Document):
    path: str
    count: int


class Files(ABC):
    """The files of a box. Every path is resolved inside the box, as its user, never on the host.

    Relative paths start at the box's workdir. Methods raise subclasses of `FileProblem`.
    """

    @abstractmethod
    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """Returns the file or a part of it. Raises `OutputTooLarge` beyond `MAX_READ`."""

    @abstractmethod
    def stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        """Yields the file in chunks."""

    @abstractmethod
    async def write(self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644) -> None:
        """Write a file atomically: readers see the old content until the new one is complete.

        Creates missing parent folders.
        """

    @abstractmethod
    async def list(self, path: str = ".") -> Sequence[FileInfo]:
        """Returns the contents of a folder, sorted by name."""

    @abstractmethod
    async def stat(self, path: str) -> FileInfo:
        """Does not follow a symbolic link at the end of the path."""

    async def exists(self, path: str) -> bool:
        from holdfast.api.errors.boxes import FileMissing, WrongFileKind

        try:
            await self.stat(path)
        except (FileMissing, WrongFileKind):
            return False
        return True

    @abstractmethod
    async def mkdir(self, path: str) -> None:
        """Create a folder and its parents. Does nothing if the folder exists."""

    @abstractmethod
    async def move(self, source: str, target: str) -> None:
        """Rename a file or folder. Replaces an existing file at the target, but never a folder."""

    @abstractmethod
    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Delete a file, link or empty folder, or with `recursive` any folder. Never follows links."""

    @abstractmethod
    async def chmod(self, path: str, mode: int) -> None: ...

    @abstractmethod
    async def find(self, path: str = ".", pattern: str = "*", *, limit: int = 10_000) -> Sequence[FileInfo]:
        """Returns everything below a folder whose name or relative path matches a glob, sorted. Follows no links."""

    @abstractmethod
    async def search(
        self, pattern: str, path: str = ".", *, glob: str = "*", regex: bool = False, limit: int = 1_000
    ) -> Sequence[Match]:
        """Returns lines that contain a string (or match a regular expression) in text files below a folder."""

    @abstractmethod
    async def replace(
        self, pattern: str, replacement: str, paths: Sequence[str], *, regex: bool = False
    ) -> Sequence[Replaced]:
        """Replace a string (or a regular expression) in files, each atomically. Returns the number of replacements."""

    @abstractmethod
    async def upload(self, source: Path, path: str) -> None:
        """Copy a file or folder from this machine to `path` in the box."""

    @abstractmethod
    async def download(self, path: str, target: Path) -> None:
        """Copy a file or folder from the box to `target` on this machine, which must not exist.

        Raises `HostileArchive` for paths outside the target, and for anything but files, folders and links.
        """

    @abstractmethod
    async def upload_tar(self, archive: AsyncIterable[bytes], path: str) -> None:
        """Unpack a tar archive into a folder while it is received."""

    @abstractmethod
    def download_tar(self, path: str) -> AsyncIterator[bytes]:
        """Yields a file or folder as a tar archive. The box controls the bytes, so unpack them with care."""


# --- requests and responses ---


@dataclass(frozen=True, slots=True, kw_only=True)
class FileList(Document):
    files: tuple[FileInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches(Document):
    matches: tuple[Match, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFolder(Document):
    path: PathText


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Document):
    source: PathText
    target: PathText


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode(Document):
    path: PathText
    mode: Annotated[int, Limits(ge=0, le=0o7777, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replace(Document):
    pattern: Annotated[str, Limits(min_length=1, max_length=65_536, check=without_nul)]
    replacement: Annotated[str, Limits(max_length=1_048_576, check=without_nul)]
    paths: Annotated[list[PathText], Limits(max_length=10_000)]
    regex: StrictBool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedList(Document):
    replaced: tuple[Replaced, ...]
