"""What a trial of the runtime gives: phases, each timed, and whose turn it is where one failed. Plain values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Category(StrEnum):
    """Whose turn it is."""

    CONFIG = "config"
    """What was asked for makes no sense, or this installation cannot do it."""
    SERVER = "server"
    """It does not answer, or refuses."""
    BOX = "box"
    REPOSITORY = "repository"
    DRIVER = "driver"
    """The kernel in the box."""
    EXECUTION = "execution"
    STATE = "state"
    """What one execution left was not there for the next."""
    MODEL = "model"
    TIMEOUT = "timeout"
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class Problem:
    category: Category
    code: str
    message: str
    hint: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {"category": self.category.value, "code": self.code, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    seconds: float
    detail: str = ""
    problem: Problem | None = None

    @property
    def ok(self) -> bool:
        return self.problem is None

    def to_json(self) -> dict[str, Any]:
        told = {"name": self.name, "ok": self.ok, "seconds": round(self.seconds, 6), "detail": self.detail}
        return told if self.problem is None else {**told, "error": self.problem.to_json()}


@dataclass(frozen=True, slots=True)
class Report:
    phases: tuple[Phase, ...]

    @property
    def ok(self) -> bool:
        return all(each.ok for each in self.phases)

    @property
    def problem(self) -> Problem | None:
        """The first."""
        return next((each.problem for each in self.phases if each.problem is not None), None)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.phases)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "category": None if self.problem is None else self.problem.category.value,
            "seconds": round(self.seconds, 6),
            "phases": [each.to_json() for each in self.phases],
        }
