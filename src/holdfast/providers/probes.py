"""Probes of this machine, for the checks of providers."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

_COMMAND_SECONDS: Final = 5.0


def nearest_folder(home: Path) -> Path:
    """Returns the folder, or its nearest existing parent."""
    return next(folder for folder in (home, *home.parents) if folder.is_dir())


def version_of(*command: str) -> str | None:
    match = re.search(r"\d+(\.\d+)+", output_of(list(command)) or "")
    return match[0] if match else None


def output_of(command: list[str]) -> str | None:
    """Returns the output of a command, or None if the command is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 or done.stdout else None
