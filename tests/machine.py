"""What tests ask of the machine that they run on, as marks: a test that lacks it is skipped, and counted."""

from __future__ import annotations

from typing import Final

import pytest

from holdfast.providers.host import limits

BACKEND: Final = limits.detect()
"""What limits local boxes here."""

needs_groups: Final = pytest.mark.skipif(
    BACKEND.kind == limits.RLIMITS, reason=f"no control groups here: {BACKEND.why}"
)
