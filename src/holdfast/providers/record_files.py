"""Small JSON files in the home, for what a cloud cannot keep about boxes and snapshots; and locks on boxes.

Files are read whenever they are needed: another process may have changed them. Locks keep processes on one home
apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from holdfast.api.errors.boxes import BoxConflict
from holdfast.boxes.provider import is_box_id
from holdfast.time_limit import time_limit

_LOCK_SECONDS: Final = 180.0
_LOCK_POLL: Final = 0.02


class RecordFiles:
    """The records of one kind, by id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _path(self, id: str) -> Path:
        return self._folder / f"{id}.json"

    def read(self, id: str) -> dict[str, Any] | None:
        return _read(self._path(id)) if is_box_id(id) else None

    def all(self) -> list[dict[str, Any]]:
        found = (_read(path) for path in self._folder.glob("*.json"))
        return [each for each in found if each is not None]

    def write(self, id: str, document: Mapping[str, Any]) -> None:
        """Replace a file as a whole: after a power cut, it has either the old content or the new."""
        path = self._path(id)
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(json.dumps(document).encode())
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise

    def remove(self, id: str) -> bool:
        """Returns whether there was one."""
        if not is_box_id(id):
            return False
        try:
            self._path(id).unlink()
        except FileNotFoundError:
            return False
        return True


class BoxLocks:
    """Locks on boxes, held by one caller at a time: in this process or in another one on the same home."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def prepare(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.asynccontextmanager
    async def lock(self, id: str, seconds: float = _LOCK_SECONDS) -> AsyncIterator[None]:
        """Keep every other caller away from a box. Raises `BoxConflict` if another caller does not finish in time."""
        path = self._folder / id
        try:
            async with time_limit(seconds):
                while (descriptor := _try_lock(path)) is None:  # noqa: ASYNC110 - another process may hold it
                    await asyncio.sleep(_LOCK_POLL)
        except TimeoutError:
            raise BoxConflict(f"another caller is changing box {id}") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def is_locked(self, id: str) -> bool:
        path = self._folder / id
        if not path.exists():
            return False
        descriptor = _try_lock(path)
        if descriptor is None:
            return True
        os.close(descriptor)
        return False


def _try_lock(path: Path) -> int | None:
    """Returns a descriptor that holds the lock until it is closed, or None if another one does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:  # its holder may have removed the file meanwhile
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return found
