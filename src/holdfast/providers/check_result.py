"""The result of one check of this machine, as `holdfast doctor` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class CheckStatus(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class CheckResult:
    name: str
    status: CheckStatus
    detail: str
    """What was seen."""
    purpose: str
    """What the checked thing is for."""
    next_step: str | None = None
    needed: bool = False
    """The server cannot run without this."""
