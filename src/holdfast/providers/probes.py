"""What the checks of providers ask this machine. Each probe reports only what it saw."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

_COMMAND_SECONDS: Final = 5.0


def nearest_folder(home: Path) -> Path:
    """The folder itself, or where it will be made."""
    return next(folder for folder in (home, *home.parents) if folder.is_dir())


def version_of(*command: str) -> str | None:
    match = re.search(r"\d+(\.\d+)+", output_of(list(command)) or "")
    return match[0] if match else None


def output_of(command: list[str]) -> str | None:
    """What a command prints; None where it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 or done.stdout else None
