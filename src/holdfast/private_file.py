"""Files that only their owner can read."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_private(path: Path, text: str) -> None:
    """Write a file atomically. No other user can read it at any time."""
    with _temporary_file(path, text) as temporary:
        temporary.replace(path)


def create_private(path: Path, text: str) -> None:
    """Write a new file as `write_private` does. Raises `FileExistsError` if the file exists."""
    with _temporary_file(path, text) as temporary:
        path.hardlink_to(temporary)


@contextmanager
def _temporary_file(path: Path, text: str) -> Iterator[Path]:
    """Write a temporary file in the same folder. It is removed at the end of the block if it still exists."""
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
