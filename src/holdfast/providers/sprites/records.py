"""What a box is, kept in labels of its sprite. If the API refuses them, the home keeps it: see `home_files`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from holdfast.api.box.spec import BoxSpec
from holdfast.providers.packed_labels import pack, unpack
from holdfast.providers.stored_record import StoredRecord

MARK: Final = "holdfast"
"""A label of every sprite of ours, for people."""
_PREFIX: Final = "hf1."
_PIECE: Final = 200


@dataclass(frozen=True, slots=True)
class BoxRecord(StoredRecord):
    id: str
    spec: BoxSpec
    labels: Mapping[str, str]
    created_at: int
    snapshot: str | None = None
    maker: str = ""
    """Random: tells the sprite that we asked for from one that another process made under the same name."""
    ready: bool = False
    stopped: bool = False
    deleted: bool = False
    """The box is gone. The sprite is kept for the checkpoints of its snapshots."""
    home: str = ""
    guest: str = ""
    """The folder of the guest's files."""
    python: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    checkpointed: bool = False
    """Snapshots were taken of it."""
    forgotten: tuple[str, ...] = ()
    """Snapshots that were deleted, and whose checkpoints could not be."""

    def to_labels(self) -> list[str]:
        pieces = pack(self.to_text(), _PIECE)
        return [MARK, *(f"{_PREFIX}{number:03d}.{piece}" for number, piece in enumerate(pieces))]

    @classmethod
    def from_labels(cls, labels: Iterable[str]) -> Self | None:
        """Returns the record in the labels of a sprite, or None if they hold none."""
        pieces = sorted(each.removeprefix(_PREFIX) for each in labels if each.startswith(_PREFIX))
        text = unpack(each.partition(".")[2] for each in pieces)
        return None if not text else cls.from_text(text)
