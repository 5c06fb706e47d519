"""What becomes of one file in a three-way merge. A pure decision, by table, and the merge of its lines by git."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.repositories.changes import FILE_MODES, Version
from holdfast.repositories.git import Git

_MOST_CONFLICTS = 127


class Action(StrEnum):
    KEEP = "keep"
    """Ours stays: it has the change already, or there is none."""
    TAKE = "take"
    """Ours is as it was: theirs replaces it."""
    MERGE = "merge"
    """Both changed, and both are files: their lines are merged."""
    CONFLICT = "conflict"
    """Both changed, and one of them is gone or no file."""


def decide(base: Version | None, ours: Version | None, theirs: Version | None) -> Action:
    if theirs in (ours, base):
        return Action.KEEP
    if ours == base:
        return Action.TAKE
    if ours is None or theirs is None or ours.mode not in FILE_MODES or theirs.mode not in FILE_MODES:
        return Action.CONFLICT
    if base is not None and base.mode not in FILE_MODES:
        return Action.CONFLICT
    return Action.MERGE


@dataclass(frozen=True, slots=True)
class Merged:
    content: bytes
    mode: str
    conflicts: bool
    binary: bool = False


@dataclass(frozen=True, slots=True)
class Side:
    """One version of a file: its name in conflict markers, and the file with its content."""

    name: str
    mode: str | None
    file: Path


def merge_lines(git: Git, folder: Path, ours: Side, base: Side, theirs: Side) -> Merged:
    """Merge two versions of a file as `git merge` would. Binary files are not merged: ours stays."""
    mode = theirs.mode if ours.mode == base.mode else ours.mode
    assert mode is not None
    names = ("-L", ours.name, "-L", base.name, "-L", theirs.name)
    files = (str(ours.file), str(base.file), str(theirs.file))
    done = git.try_(folder, "merge-file", "-p", "--quiet", *names, *files)
    if 0 <= done.returncode <= _MOST_CONFLICTS:
        return Merged(done.stdout, mode, done.returncode > 0)
    return Merged(ours.file.read_bytes(), mode, True, binary=True)
