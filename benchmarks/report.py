"""What was measured, against what was wanted: medians, ratios, goals, and the tables that show them."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from servers import Side

SIDES: Final = ("reference", "holdfast")
OTHERS: Final = "others CPU %"
CALM_SHARE: Final = 25.0
"""Percent of one processor that other processes may use before we call a measurement disturbed."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What our figure must be: at most or at least so many times the reference's, or under a fixed bound."""

    kind: str
    """`at most` or `at least` (times the reference's figure), or `under` (in the row's unit)."""
    value: float
    text: str

    def reached(self, holdfast: float, reference: float | None) -> bool | None:
        """None where the reference's figure is needed and missing."""
        if self.kind == "under":
            return holdfast < self.value
        if reference is None:
            return None
        if self.kind == "at most":
            return holdfast <= reference * self.value
        return holdfast >= reference * self.value


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what work, and what we want of it."""

    name: str
    """For `--only`."""
    work: str
    unit: str
    goal: Goal | None
    """None: measured for information."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one side."""

    value: float
    """In the row's unit."""
    details: dict[str, float] = field(default_factory=dict)
    """Figures beside, by name: percentiles, the share of a processor that each process used."""

    @property
    def disturbed(self) -> bool:
        return self.details.get(OTHERS, 0.0) >= CALM_SHARE


@dataclass(frozen=True, slots=True)
class Result:
    row: Row
    samples: dict[str, list[Sample]]
    """By side."""

    def calm_samples(self, side: str) -> list[Sample]:
        """Those that count: the undisturbed ones, or all where there are none."""
        samples = self.samples.get(side, [])
        return [sample for sample in samples if not sample.disturbed] or samples

    def median(self, side: str) -> float | None:
        samples = self.calm_samples(side)
        return statistics.median(sample.value for sample in samples) if samples else None

    def details(self, side: str) -> dict[str, float]:
        """The median of each figure beside."""
        collected: dict[str, list[float]] = {}
        for sample in self.calm_samples(side):
            for name, value in sample.details.items():
                collected.setdefault(name, []).append(value)
        return {name: statistics.median(values) for name, values in collected.items()}

    @property
    def ratio(self) -> float | None:
        reference, holdfast = self.median("reference"), self.median("holdfast")
        return holdfast / reference if reference and holdfast is not None else None

    @property
    def reached(self) -> bool | None:
        holdfast = self.median("holdfast")
        if self.row.goal is None or holdfast is None:
            return None
        return self.row.goal.reached(holdfast, self.median("reference"))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.row.name,
            "work": self.row.work,
            "unit": self.row.unit,
            "goal": self.row.goal.text if self.row.goal else None,
            "ratio": self.ratio,
            "reached": self.reached,
            **{side: self._side_json(side) for side in SIDES if self.samples.get(side)},
        }

    def _side_json(self, side: str) -> dict[str, Any]:
        return {
            "median": self.median(side),
            "details": self.details(side),
            "samples": [asdict(sample) for sample in self.samples[side]],
        }


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def describe_machine() -> str:
    model = next((line for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "").partition(":")[2]
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    processor = " ".join(model.split())
    return (
        f"{os.cpu_count()} cores{f' ({processor})' if processor else ''}, {memory * 1024 / 1e9:.0f} GB,"
        f" Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}"
    )


def _lines(path: str) -> list[str]:
    with open(path) as file:  # noqa: PTH123
        return file.read().splitlines()


def show_value(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}"


def _headings(reference: str) -> tuple[str, ...]:
    return ("work", reference, "holdfast", "ratio", "goal", "reached")


def _cells(result: Result) -> tuple[str, ...]:
    unit = result.row.unit
    reached = {True: "yes", False: "no", None: "–"}[result.reached]
    return (
        result.row.work,
        show_value(result.median("reference"), unit),
        show_value(result.median("holdfast"), unit),
        f"{result.ratio:.3g}" if result.ratio is not None else "–",
        result.row.goal.text if result.row.goal else "–",
        reached,
    )


def plain_table(results: list[Result], reference: str = "reference") -> str:
    """`reference` is what the other side is called."""
    return _aligned([_headings(reference), *(_cells(result) for result in results)])


def plain_details(results: list[Result]) -> str:
    """The figures beside, one line for each side of each row."""
    lines = []
    for result in results:
        for side in SIDES:
            if result.samples.get(side):
                values = [
                    show_value(sample.value, "").strip() + (" (disturbed)" if sample.disturbed else "")
                    for sample in result.samples[side]
                ]
                details = ", ".join(f"{name} {value:,.4g}" for name, value in result.details(side).items())
                lines.append((result.row.name, side, f"{details}  [{'; '.join(values)}]"))
    return _aligned(lines)


def markdown_table(results: list[Result], reference: str = "reference") -> str:
    headings = _headings(reference)
    rows = [headings, tuple("---" for _ in headings), *(_cells(result) for result in results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def markdown_details(results: list[Result]) -> str:
    rows: list[tuple[str, ...]] = [("row", "side", "beside the figure above"), ("---", "---", "---")]
    for result in results:
        for side in SIDES:
            if details := result.details(side):
                rows.append(
                    (result.row.name, side, ", ".join(f"{name} {value:,.4g}" for name, value in details.items()))
                )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def describe_sides(sides: list[Side]) -> list[str]:
    return [f"{side.name} {side.version} acknowledges an append after: {side.durability}" for side in sides]


def _aligned(rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
