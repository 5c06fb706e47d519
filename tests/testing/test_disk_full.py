"""A full disk refuses appends by name, keeps serving reads, and loses nothing; with room again, writing goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.testing.disks import CannotMount
from holdfast.testing.faults import fill_disk_while_writing

MEGABYTE = 1024 * 1024


def test_a_disk_that_fills_up_under_the_server_loses_nothing(tmp_path: Path, seed: int) -> None:
    try:
        report = asyncio.run(fill_disk_while_writing(8 * MEGABYTE, seed, log=tmp_path / "server.log"))
    except CannotMount as error:
        pytest.skip(str(error))
    report.check()
    assert report.refused >= 200, report
    assert report.acknowledged > 100, report
    assert report.kills == 3, report
