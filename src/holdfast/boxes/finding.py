"""What a check of this machine found: what `holdfast doctor` prints."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Word(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    word: Word
    detail: str
    """What was seen."""
    purpose: str
    """What it is for."""
    next_step: str | None = None
    needed: bool = False
    """Without this, not even the server runs."""
