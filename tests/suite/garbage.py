"""When garbage is collected: not while tests are loaded, and in whole only between folders of tests.

What is loaded stays: to look through it at each collection takes half a second. And a socket that a test, or a library
under it, left to the garbage collector is found where it was left, and named at the end of the run. Python itself would
find it in the middle of any later test, which would fail for it.
"""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Iterable
from typing import Any, Final

import pytest

PROPERTY: Final = "left open"
"""Of a test's report: a folder of tests, and what they left open."""
_NEVER: Final = 1_000_000
_SHOWN: Final = 20


def hold() -> None:
    """Collect nothing while everything is loaded."""
    gc.disable()


def go_on() -> None:
    """Leave what is loaded out of all collections, and the oldest garbage to `collect_after`."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    gc.enable()


def collect_after(item: pytest.Item, following: pytest.Item | None) -> None:
    """Collect everything after the last test of a folder in this process."""
    folder = item.path.parent
    if following is None or following.path.parent != folder:
        for found in collect():
            item.user_properties.append((PROPERTY, (os.path.relpath(folder, item.config.rootpath), found)))


def collect() -> list[str]:
    """Collect everything. Returns what was left open: files, sockets, processes."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
    return [str(each.message) for each in found if issubclass(each.category, ResourceWarning)]


def lines(reports: Iterable[Any]) -> list[str]:
    """What the tests of these reports left open, by folder."""
    told = [
        f"{value[0]}: {value[1]}"
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY
    ]
    return [*sorted(set(told))[:_SHOWN], *([f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else [])]
