"""The Daytona SDK for TypeScript, the published one, runs against the Daytona API of a real server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.compat.daytona.language_server import SYMBOLS_OF_PYTHON
from tests.providers.local.rootfs import busybox

from holdfast.testing.server import ServerProcess

HERE = Path(__file__).parent

pytestmark = pytest.mark.box  # its server makes the boxes

EXPECTED = {
    "declared": True,
    "volume": "ready",
    "volumes": True,
    "listed": True,
    "exec": "blue\n/home/daytona\n",
    "code": "42\n",
    "folders": ["/home/daytona", "/home/daytona", "/home/daytona"],
    "sent": 300_000,
    "downloaded": "one",
    "file": "from a file",
    "streamed": 300_000,
    "bulk": [["two", None], [None, "FILE_NOT_FOUND"]],
    "details": 3,
    "tree": 5,
    "replaced": True,
    "searched": 3,
    "matches": 1,
    "session": ["/tmp\n", "oops\n", 0],
    "followed": "x\nx1\nx2\n",
    "logs": "x\nx1\nx2\n",
    "command": 0,
    "commands": 2,
    "sessions": 1,
    "connected": True,
    "resized": [91, 22],
    "terminals": ["p"],
    "size": 92,
    "terminal": [4, True, True, True],
    "killed": 137,
    "contexts": 1,
    "interpreter": ["1 b\n", "ZeroDivisionError", "ZeroDivisionError"],
    "config": "c",
    "remote": ["/home/daytona/bare", 1],
    "git": [["main"], "main"],
    "symbols": ["one"],
    "more": [[], []],
    "completed": "print",
    "secret": [True, "of a tour", 1],
    "refusals": [],
    "labels": {"other": "label"},
    "settings": [5, 70, 80, True],
    "metrics": [1, True],
    "preview": True,
    "urls": True,
    "snapshot": "active",
    "snapshots": True,
    "activated": 400,
    "built": ["active", True],
    "own": ["started", True, True],
    "archived": "archived",
    "started": ["started", 2],
    "recovered": 400,
    "gone": ["DaytonaNotFoundError", 404],
    "uncalled": [],
}


@pytest.mark.slow
def test_every_method_of_the_sdk_for_typescript(tmp_path: Path) -> None:
    node = shutil.which("node")
    assert node is not None
    language_server = tmp_path / "pylsp"
    language_server.write_text(SYMBOLS_OF_PYTHON)
    with ServerProcess(tmp_path / "home", daytona=True) as server:
        headers = {"Authorization": f"Bearer {server.api_key}"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=240, trust_env=False) as api:
            params = {"name": "tiny:1"}
            assert api.post("/v1/images/import", params=params, content=busybox().done()).status_code == 201
        words = [f"{server.url}/compat/daytona", server.api_key or "", str(tmp_path), "tiny:1", str(language_server)]
        done = subprocess.run(
            [node, "daytona.mjs", *words], cwd=HERE, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == EXPECTED
