"""Which process runs which tests: a file is given to one process whole, or in pieces if it has many tests.

So what the tests of a file share, often a server, is started once and not by every process. Tests of one `xdist_group`
stay together too. Files that take long come first: at the end all processes have something to do.

pytest-xdist would give out one test at a time, and count all tests that it gave out before after each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from tests.suite import needs
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

_PIECE: Final = 24
_SLOW_PIECE: Final = 8
_CHECKOUT: Final = Path(__file__).parents[2]


def add_groups(items: Iterable[pytest.Item]) -> None:
    """Keep tests together that need a Docker daemon or the same cloud: each process would start its own."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None and (group := _group(item)) is not None:
            item.add_marker(pytest.mark.xdist_group(group))


def _group(item: pytest.Item) -> str | None:
    if item.get_closest_marker("docker") is not None:
        return "docker"
    place = item.callspec.params.get("place") if hasattr(item, "callspec") else None
    return f"interpreters at {place}" if place in ("daytona", "sprites", "modal") else None


def pieces(tests: Iterable[str]) -> dict[str, str]:
    """The piece of each test. Tests of a piece run one after the other in one process."""
    counts: Counter[str] = Counter()
    found = {}
    for test in tests:
        if test.rfind("@") > test.rfind("]"):  # as pytest-xdist writes the group of a test
            found[test] = test.rsplit("@", 1)[1]
        else:
            file = _file(test)
            found[test] = f"{file} {counts[file] // (_SLOW_PIECE if _is_slow(file) else _PIECE)}"
            counts[file] += 1
    return found


def rank(piece: Mapping[str, bool]) -> tuple[bool, bool, int]:
    """Sorts what is to be given out first before the rest, by the tests of each piece."""
    first = next(iter(piece))
    grouped = first.rfind("@") > first.rfind("]")
    return not grouped, not _is_slow(_file(first)), -len(piece) if grouped else 0


def _file(test: str) -> str:
    return test.split("::", 1)[0]


@cache
def _is_slow(file: str) -> bool:
    return "slow" in needs.marks_of_file(_CHECKOUT / file)


class PieceScheduling(LoadGroupScheduling):  # type: ignore[misc] # has no types
    """Gives out the pieces: groups first, then those of slow files."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._pieces: dict[str, str] = {}

    def schedule(self) -> None:
        if self.collection is None:
            self._pieces = pieces(next(iter(self.registered_collections.values())))
        super().schedule()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        test = self.registered_collections[node][item_index]
        piece = self.assigned_work[node][self._pieces[test]]
        piece[test] = True
        if all(piece.values()):
            del self.assigned_work[node][self._pieces[test]]
        self._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        following = min(self.workqueue, key=lambda name: rank(self.workqueue[name]))
        self.workqueue.move_to_end(following, last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        return self._pieces[nodeid]
