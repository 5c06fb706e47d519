"""When the checkpoints of killed servers are looked through."""

from __future__ import annotations

from itertools import islice

from holdfast.runs.checkpoint.collection import UNSETTLED_MS, pauses


def test_a_snapshot_that_ended_after_its_server_was_killed_is_found_soon() -> None:
    first, second, third = islice(pauses(), 3)
    assert UNSETTLED_MS / 1000 < first <= 1800, "old enough to be judged, and not hours later"
    assert second == third > 3600
