"""Nothing that was acknowledged is lost, doubled, torn or moved, however often the server is killed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

from tests.durability.faults import KillPlan, kill_while_writing

from holdfast.testing.server import ServerProcess

KILLS: Final = 50 if os.environ.get("HOLDFAST_TEST_ALL") else 20


def test_a_server_killed_many_times_while_written_to_has_lost_nothing(tmp_path: Path, seed: int) -> None:
    plan = KillPlan(kills=KILLS, startup_kills=KILLS * 3 // 10)
    report = asyncio.run(kill_while_writing(ServerProcess(tmp_path / "home"), plan, seed))
    report.check()
    assert report.kills == KILLS
    assert report.startup_kills == KILLS * 3 // 10
    # The trial is worth something only if kills came upon appends on their way, some of them written already.
    assert report.kills_in_flight >= KILLS * 9 // 10, report
    assert report.repeated > 0, report
    assert report.acknowledged > 20 * KILLS, report
    assert report.reconnections >= KILLS, report
