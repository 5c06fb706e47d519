"""A box never runs before the programs of the machine, whatever the priority of its server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_SERVER = """
import asyncio, sys
from pathlib import Path
from holdfast.api.box.spec import BoxSpec
from holdfast.providers.local import LocalProvider

async def main():
    async with LocalProvider(Path(sys.argv[1])) as provider:
        box = await provider.create(BoxSpec(), id="one")
        try:
            print((await box.exec(["nice"])).text)
        finally:
            await box.delete()

asyncio.run(main())
"""

pytestmark = pytest.mark.box


@pytest.mark.parametrize(
    ("of_server", "of_box"),
    [
        pytest.param(-5, 0, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise its own priority")),
        (15, 15),
    ],
)
def test_a_box_inherits_a_low_priority_and_no_high_one(tmp_path: Path, of_server: int, of_box: int) -> None:
    adjustment = of_server - os.getpriority(os.PRIO_PROCESS, 0)
    command = ["nice", "-n", str(adjustment), sys.executable, "-P", "-c", _SERVER, str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == [str(of_box)], done.stderr
