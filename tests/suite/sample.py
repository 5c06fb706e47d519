"""Chooses a part of the large suites that every remote provider has: a whole run of `bin/test` takes a third.

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
    marked = [item.nodeid for item in items if item.get_closest_marker("sampled")]
    chosen = set(random.Random(seed).sample(sorted(marked), round(len(marked) * _SHARE)))
    left_out = set(marked) - chosen
    return [item for item in items if item.nodeid not in left_out], [item for item in items if item.nodeid in left_out]


def apply(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests out, if this is a run that samples."""
    if not os.environ.get(SAMPLING):
        return
    items[:], left_out = sampled(items, os.environ.get("HOLDFAST_TEST_SEED", ""))
    if left_out:
        config.hook.pytest_deselected(items=left_out)
