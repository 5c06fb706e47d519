"""The Daytona SDK for TypeScript, the published one, runs against the Daytona API of a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.testing.server import ServerProcess

HERE = Path(__file__).parent

pytestmark = pytest.mark.box  # its server makes the boxes


@pytest.mark.slow
def test_the_sdk_for_typescript_works_as_it_is(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None
    with ServerProcess(tmp_path / "home", daytona=True) as server:
        done = subprocess.run(
            [node, "daytona.mjs", f"{server.url}/compat/daytona", server.api_key or ""],
            cwd=HERE,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "listed": True,
        "exec": "blue\n/home/daytona\n",
        "code": "42\n",
        "folders": ["/home/daytona", "/home/daytona"],
        "downloaded": "one",
        "bulk": [["two", False], [None, True]],
        "details": 3,
        "replaced": True,
        "searched": 2,
        "matches": 1,
        "session": ["/tmp\n", "oops\n", 0],
        "followed": "x\nx1\nx2\n",
        "sessions": 1,
        "terminal": [4, True, True],
        "interpreter": ["1\n", "ZeroDivisionError"],
        "git": [["main", "topic"], "topic"],
        "labels": {"other": "label"},
        "settings": [5, True],
        "preview": True,
        "volume": "ready",
        "snapshots": True,
        "archived": "archived",
        "started": "started",
        "gone": ["DaytonaNotFoundError", 404],
    }
