"""Boxes of a root server start whatever umask it has, and leave nothing in /run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only a server that is root has a stage")

CREATE_BOX = """
import asyncio, os, sys
from pathlib import Path
from holdfast.boxes import BoxSpec
from holdfast.providers.local import LocalProvider

async def main():
    os.umask(int(sys.argv[2], 8))
    async with LocalProvider(Path(sys.argv[1])) as provider:
        box = await provider.create(BoxSpec(), id="b-stage")
        done = await box.exec(["echo", "started"], timeout=60)
        print(done.text.strip(), os.listdir("/run/holdfast"))
        await provider.remove(box.id)

asyncio.run(main())
"""


def create_box_on_an_empty_run(home: Path, *, umask: str, before: str = "true") -> str:
    """What `CREATE_BOX` prints where /run is empty but for what `before` does there."""
    script = 'mount -t tmpfs -o mode=755 empty /run && eval "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", before, sys.executable, "-c", CREATE_BOX, str(home), umask],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_root
@pytest.mark.parametrize("umask", ["022", "077"])
def test_a_box_starts_where_holdfast_never_ran(tmp_path: Path, umask: str) -> None:
    assert create_box_on_an_empty_run(tmp_path, umask=umask) == "started []\n"


@needs_root
def test_a_box_starts_where_an_earlier_version_left_a_closed_folder(tmp_path: Path) -> None:
    made = create_box_on_an_empty_run(tmp_path, umask="077", before="mkdir -m 700 /run/holdfast")
    assert made == "started []\n"
