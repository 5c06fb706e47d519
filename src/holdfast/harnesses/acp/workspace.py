"""Reads and writes text files of the workspace for an agent that asks its client for them. Runs inside a box.

The agent runs as the same user and could open them itself, so the checks follow the protocol and are no security
boundary.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FILE = 16 << 20


class FileRefused(Exception):
    """Not a file of the workspace, or too large."""


def read_text(workspace: str, path: Any, line: Any = None, limit: Any = None) -> str:
    """Returns a file, or its lines from `line` on (the first is 1). Raises `FileRefused`, `OSError`."""
    with open(_within(workspace, path), "rb", opener=_open) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileRefused(f"{path} is not a file")
        data = file.read(MAX_FILE + 1)
    if len(data) > MAX_FILE:
        raise FileRefused(f"{path} has more than {MAX_FILE} bytes")
    text = data.decode("utf-8", "replace")
    if line is None and limit is None:
        return text
    lines = text.splitlines(keepends=True)
    start = max(0, line - 1) if isinstance(line, int) else 0
    return "".join(lines[start : start + limit] if isinstance(limit, int) and limit >= 0 else lines[start:])


def write_text(workspace: str, path: Any, content: Any) -> None:
    """Raises `FileRefused`, `OSError`."""
    if not isinstance(content, str):
        raise FileRefused("there is no content")
    target = _within(workspace, path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(target, "wb") as file:
        file.write(content.encode("utf-8", "replace"))


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would block


def _within(workspace: str, path: Any) -> str:
    if not isinstance(path, str) or "\0" in path or not os.path.isabs(path):
        raise FileRefused("the path must be absolute")
    root, target = os.path.realpath(workspace), os.path.realpath(path)
    if os.path.commonpath((root, target)) != root:
        raise FileRefused(f"{path} is not in the workspace")
    return target
