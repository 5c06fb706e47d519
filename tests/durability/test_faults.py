"""Nothing that was acknowledged is lost, doubled, torn or moved, however often the server is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.durability.faults import KillPlan, kill_while_writing

from holdfast.testing.server import ServerProcess


def test_a_server_killed_fifty_times_while_written_to_has_lost_nothing(tmp_path: Path, seed: int) -> None:
    plan = KillPlan(kills=50, startup_kills=15)
    report = asyncio.run(kill_while_writing(ServerProcess(tmp_path / "home"), plan, seed))
    report.check()
    assert report.kills == 50
    assert report.startup_kills == 15
    # The trial is worth something only if kills came upon appends on their way, some of them written already.
    assert report.kills_in_flight >= 45, report
    assert report.repeated > 0, report
    assert report.acknowledged > 1000, report
    assert report.reconnections >= 50, report
