"""Files that only their owner can read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file, whole or not at all. No other user can read it, from the first byte on."""
    with _written_beside(path, text) as temporary:
        temporary.replace(path)


def create_private(path: Path, text: str) -> None:
    """Write a new file as `write_private` does. Raises `FileExistsError` where another process was faster."""
    with _written_beside(path, text) as temporary:
        path.hardlink_to(temporary)


@contextmanager
def _written_beside(path: Path, text: str) -> Iterator[Path]:
    """Write a file in the same folder. What is still there of it at the end of the block is removed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
