"""What benchmarks of this machine share: their options, the samples by row and side, and how results are printed."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from report import (
    Result,
    Row,
    Sample,
    describe_machine,
    markdown_details,
    markdown_table,
    percentile,
    plain_details,
    plain_table,
)


class Samples:
    """What was measured so far, by row and side."""

    def __init__(self) -> None:
        self._samples: dict[str, dict[str, list[Sample]]] = {}

    def add(self, row: str, side: str, value: float, **details: float) -> None:
        self._samples.setdefault(row, {}).setdefault(side, []).append(Sample(value, details))

    def add_median(self, row: str, side: str, values: Sequence[float]) -> None:
        """With the slowest hundredth beside it."""
        self.add(row, side, statistics.median(values), p99=percentile(values, 0.99))

    def results(self, rows: Sequence[Row]) -> list[Result]:
        return [Result(row, self._samples[row.name]) for row in rows if row.name in self._samples]


def options(description: str | None, rows: Sequence[Row]) -> argparse.ArgumentParser:
    """A parser with the options that all have; `description` is the docstring of the benchmark."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="does it work? Not to be quoted")
    parser.add_argument("--only", action="append", default=[], choices=[row.name for row in rows])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    return parser


def add_rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="how often each row is measured")


def add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dir", type=Path, help="where boxes are kept; on a disk, for figures that mean something")


@contextmanager
def folder_of_boxes(wanted: Path | None) -> Iterator[Path]:
    """A folder in the wanted one, gone in the end."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-benchmark-", dir=wanted))
    folder.chmod(0o711)  # the bare sandbox runs as the boxes' user, and has to get there
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def chosen(only: Sequence[str], work: Sequence[str], also: Mapping[str, str]) -> list[str]:
    """What is to be done for the wanted rows, all of it where none is named; `also` are rows that come of others."""
    names = {also.get(name, name) for name in only} or set(work)
    return [name for name in work if name in names]


def in_rounds(names: Sequence[str], rounds: int, once: Collection[str] = ()) -> Iterator[str]:
    """Each of them in every round, or `once`, announced."""
    for number in range(rounds):
        for name in names:
            if number == 0 or name not in once:
                print(f"{name} {number + 1}/{rounds}", file=sys.stderr)
                yield name


def print_results(given: argparse.Namespace, results: list[Result], reference: str) -> None:
    """`reference` is what the other side is called."""
    machine = describe_machine()
    if given.json:
        print(json.dumps({"machine": machine, "rows": [result.to_json() for result in results]}, indent=2))
    elif given.markdown:
        print("\n\n".join((markdown_table(results, reference), machine, markdown_details(results))))
    else:
        print("\n\n".join((plain_table(results, reference), plain_details(results), machine)))
