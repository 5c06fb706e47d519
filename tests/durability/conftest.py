"""One seed for all random choices, shown where a test fails."""

from __future__ import annotations

import os
import sys
from random import SystemRandom

import pytest


@pytest.fixture
def seed() -> int:
    given = os.environ.get("HOLDFAST_TEST_SEED")
    chosen = int(given) if given else SystemRandom().randrange(2**32)
    sys.stdout.write(f"repeat with HOLDFAST_TEST_SEED={chosen}\n")
    return chosen
