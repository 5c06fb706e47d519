"""Where the files of a workspace came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from holdfast.api.document import Document, Limits
from holdfast.api.limits import PathText, StrictBool, without_nul

RepositoryUrl = Annotated[str, Limits(min_length=1, max_length=2048, check=without_nul)]
RefName = Annotated[str, Limits(min_length=1, max_length=255, check=without_nul)]
Commit = Annotated[str, Limits(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClonedRepository(Document):
    """A further repository of an environment, in a folder of the workspace."""

    path: PathText
    """Its folder, below the workspace."""
    url: RepositoryUrl
    """Without credentials."""
    commit: Commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Source(Document):
    """The repository that a workspace was copied from."""

    repository: RepositoryUrl | None = None
    """Its URL, without credentials. None if it has no remote."""
    ref: RefName | None = None
    """The branch or tag that was asked for, or the current branch."""
    commit: Commit | None = None
    """The commit that was checked out. Changes are compared with this one when they come home."""
    folder: PathText | None = None
    """The folder of the repository that was copied, if it is not the whole."""
    changed: StrictBool = False
    """Whether the workspace also had changes that were not committed."""
