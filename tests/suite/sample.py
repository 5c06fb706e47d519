"""Chooses a part of the large suites, such as the contract that every provider has: a whole run of `bin/test` takes a
third, or what `sampled(share=…)` says.

The seed of the run chooses, so every process of tests chooses alike, and a run can be repeated. `bin/test --all`, and
`bin/test` with a path, run all.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Final

import pytest

SAMPLING: Final = "HOLDFAST_TEST_SAMPLE"
"""Set by `bin/test` for a whole run."""
_SHARE: Final = 1 / 3


def sampled(items: Sequence[pytest.Item], seed: str) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Returns the tests to run, in their order, and those to leave out."""
    marked: dict[float, list[str]] = {}
    for item in items:
        if (mark := item.get_closest_marker("sampled")) is not None:
            marked.setdefault(mark.kwargs.get("share", _SHARE), []).append(item.nodeid)
    left_out: set[str] = set()
    for share, ids in marked.items():
        left_out |= set(ids) - set(random.Random(seed).sample(sorted(ids), round(len(ids) * share)))
    return [item for item in items if item.nodeid not in left_out], [item for item in items if item.nodeid in left_out]


def apply(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests out, if this is a run that samples."""
    if not os.environ.get(SAMPLING):
        return
    items[:], left_out = sampled(items, os.environ.get("HOLDFAST_TEST_SEED", ""))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
