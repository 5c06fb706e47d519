"""Which tests failed, for `bin/test`: it runs them a second time, alone, to tell a broken test from an unsteady one.

The names are written to a file, one on a line, as pytest takes them on its command line.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

FILE: Final = "HOLDFAST_TEST_FAILURES"
"""The variable in which `bin/test` says where to write the names."""


def names(reports: Iterable[Any]) -> list[str]:
    """The tests that failed, each once. A file that cannot be loaded is named like a test."""
    failed = [without_group(report.nodeid) for report in reports if getattr(report, "failed", False)]
    return list(dict.fromkeys(failed))


def without_group(test: str) -> str:
    """The name of a test without the group that pytest-xdist adds to it."""
    return test.rsplit("@", 1)[0] if test.rfind("@") > test.rfind("]") else test


def write(path: Path, reports: Iterable[Any]) -> None:
    path.write_text("".join(f"{name}\n" for name in names(reports)))
