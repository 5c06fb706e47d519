"""The home folder: one server at a time, its secret, and the note by which the CLI finds the running one."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path


class HomeInUse(Exception):
    """Another server has this home."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """What `server.json` says of the server that has this home."""

    url: str
    pid: int
    version: str
    startedAt: int
    apiKey: str | None


class Home:
    """A folder that only its user can read. Use as a context manager: it is this process's until the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.database = path / "holdfast.db"
        self._note = path / "server.json"
        self._lock: int | None = None

    def __enter__(self) -> Home:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            running = read_running(self.path)
            where = f" at {running.url} (pid {running.pid})" if running else ""
            raise HomeInUse(
                f"a server already runs on {self.path}{where}: use it, stop it, or give another --home"
            ) from None
        os.umask(0o077)
        self._note.unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._note.unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def secret(self) -> bytes:
        """The root secret of this home, made on first use. Keys for each purpose are derived from it."""
        path = self.path / "secret"
        try:
            return bytes.fromhex(path.read_text())
        except FileNotFoundError:
            secret = secrets.token_bytes(32)
            _write_private(path, secret.hex())
            return secret

    def announce(self, running: RunningServer) -> None:
        _write_private(self._note, json.dumps(asdict(running)))


def read_running(home: Path) -> RunningServer | None:
    """The server that says it has this home. It may have died without taking the note back: connect to find out."""
    try:
        return RunningServer(**json.loads((home / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all, and readable by its owner alone from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
