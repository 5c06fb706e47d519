"""The examples do what they say, as programs that somebody starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from holdfast import SyncClient
from holdfast.testing.server import ServerProcess

EXAMPLES: Final = Path(__file__).parents[2] / "examples"


def run(example: str, server: ServerProcess) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example)],
        env={**env, "HOLDFAST_HOME": str(server.home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_long_context_is_explored_by_code(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home") as server:
        told = run("long_context.py", server)
        assert told.count("--- step") == 4
        assert told.rstrip().endswith("40 letters, most of them from Bergen")
        with SyncClient(server.url, api_key=server.api_key) as client:
            assert [each.id for each in client.boxes.list()] == []
