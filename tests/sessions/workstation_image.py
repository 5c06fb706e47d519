"""A home with the image holdfast/workstation, which stays in the checkout: code-server takes minutes to build.

`bin/test --all` builds it once, and again when its recipe has changed. Other runs use it if it is there.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Final

import pytest

from holdfast.images.workstation import RECIPE
from holdfast.testing.server import ServerProcess

HOME: Final = Path(__file__).parents[2] / ".holdfast" / "workstation"
_BUILT: Final = HOME / "built"
_SECONDS: Final = 1800


def _digest() -> str:
    return hashlib.sha256(RECIPE.read_bytes()).hexdigest()


@contextmanager
def workstation_home() -> Iterator[Path]:
    """The home, for one test at a time. Skips the test if the image is not there, and is not to be built."""
    HOME.mkdir(parents=True, exist_ok=True)
    HOME.chmod(0o755)
    with (HOME.with_name("workstation.lock")).open("w") as lock:
        flock(lock, LOCK_EX)
        if not _BUILT.exists() or _BUILT.read_text() != _digest():
            if not os.environ.get("HOLDFAST_TEST_ALL"):
                pytest.skip("holdfast/workstation is not built here: bin/test --all builds it, in some minutes")
            _build()
        yield HOME / "home"


def _build() -> None:
    with ServerProcess(HOME / "home") as server:
        key = () if server.api_key is None else ("--api-key", server.api_key)
        command = (sys.executable, "-m", "holdfast", "image", "build", "workstation", "--server", server.url, *key)
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"holdfast/workstation cannot be built here: {done.stderr.strip()[-300:]}")
    _BUILT.write_text(_digest())
