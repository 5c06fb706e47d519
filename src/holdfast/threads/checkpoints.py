"""Checkpoints, forks and rewinds as a thread records them. Data only: `lineage` reads them from entries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a box at one moment: a snapshot, and what a box with these files needs."""

    snapshot: str
    provider: str
    image: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"snapshot": self.snapshot, "provider": self.provider, "image": self.image}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Files:
        """Raises KeyError or ValueError."""
        image = value.get("image")
        if not all(isinstance(each, str) for each in (value["snapshot"], value["provider"], image or "")):
            raise ValueError("a snapshot, its provider and its image are texts")
        return cls(value["snapshot"], value["provider"], image)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The end of a turn: its position on the thread, and the files of the box at that time."""

    offset: int
    """The position after the last entry of the turn."""
    at: int
    """UTC milliseconds."""
    files: Files | None = None
    """None if they were not saved."""
    size: int | None = None
    """Bytes that the snapshot added to the one before it."""
    why: str | None = None
    """Why the files were not saved."""

    def to_json(self) -> dict[str, Any]:
        return {
            "offset": self.offset,
            "at": self.at,
            "files": None if self.files is None else self.files.to_json(),
            "size": self.size,
            "why": self.why,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Checkpoint:
        files = value["files"]
        return cls(
            value["offset"], value["at"], None if files is None else Files.from_json(files), value["size"], value["why"]
        )


@dataclass(frozen=True, slots=True)
class ForkOf:
    """Where a thread was forked from."""

    thread: str
    turn: int
    """The last turn that both have."""
    offset: int
    """The position up to which they are the same."""

    def to_json(self) -> dict[str, Any]:
        return {"thread": self.thread, "turn": self.turn, "offset": self.offset}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ForkOf:
        return cls(value["thread"], value["turn"], value["offset"])


@dataclass(frozen=True, slots=True)
class Base:
    """The files that the box of a thread has to start from, because the thread was forked or rewound."""

    id: str
    """The entry that says so. Boxes that have started from these files, and their snapshots, carry it as a label."""
    files: Files
    run: str | None = None
    """The last run of the conversation at that time: these are the files at its end."""

    def to_json(self) -> dict[str, Any]:
        return {"id": self.id, "run": self.run, **self.files.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Base:
        return cls(value["id"], Files.from_json(value), value["run"])


@dataclass(frozen=True, slots=True)
class Undo:
    """What a rewind left: the end of the conversation before it, and the files of that moment."""

    turn: int
    offset: int
    files: Files

    def to_json(self) -> dict[str, Any]:
        return {"turn": self.turn, "offset": self.offset, **self.files.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Undo:
        return cls(value["turn"], value["offset"], Files.from_json(value))


@dataclass(frozen=True, slots=True)
class Lineage:
    """Where a thread comes from, and which files its box starts from."""

    fork_of: ForkOf | None = None
    base: Base | None = None
    undo: Undo | None = None
    """How to undo the latest rewind."""

    def to_json(self) -> dict[str, Any]:
        return {
            "forkOf": None if self.fork_of is None else self.fork_of.to_json(),
            "base": None if self.base is None else self.base.to_json(),
            "undo": None if self.undo is None else self.undo.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Lineage:
        fork_of, base, undo = value["forkOf"], value["base"], value["undo"]
        return cls(
            None if fork_of is None else ForkOf.from_json(fork_of),
            None if base is None else Base.from_json(base),
            None if undo is None else Undo.from_json(undo),
        )

    @property
    def snapshots(self) -> frozenset[str]:
        """The snapshots that the thread needs."""
        kept = (None if self.base is None else self.base.files, None if self.undo is None else self.undo.files)
        return frozenset(files.snapshot for files in kept if files is not None)


NO_LINEAGE = Lineage()
