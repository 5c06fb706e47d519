"""The report of a smoke test: its phases with their times, and the problem of a phase that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.api.runtime_tests import PhaseProblem


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    seconds: float
    detail: str = ""
    problem: PhaseProblem | None = None

    @property
    def ok(self) -> bool:
        return self.problem is None

    def to_json(self) -> dict[str, Any]:
        document = {"name": self.name, "ok": self.ok, "seconds": round(self.seconds, 6), "detail": self.detail}
        return document if self.problem is None else {**document, "error": self.problem.to_json()}


@dataclass(frozen=True, slots=True)
class Report:
    phases: tuple[Phase, ...]

    @property
    def ok(self) -> bool:
        return all(each.ok for each in self.phases)

    @property
    def problem(self) -> PhaseProblem | None:
        """The first problem."""
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
