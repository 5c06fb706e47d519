"""Files of boxes. Times are UTC milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from holdfast.api.document import Document, Limits
from holdfast.api.limits import PathText, StrictBool, without_nul


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileList(Document):
    files: tuple[FileInfo, ...]


@dataclass(frozen=True, slots=True)
class Match(Document):
    """A line that a search found."""

    path: str
    line: int
    """From 1."""
    text: str


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


@dataclass(frozen=True, slots=True)
class Replaced(Document):
    path: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedList(Document):
    replaced: tuple[Replaced, ...]
