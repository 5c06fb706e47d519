"""The home folder: one server at a time, its secret, and the note by which the CLI finds the running one."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final


def default_home(environment: Mapping[str, str], platform: str, user_home: Path) -> Path:
    """`HOLDFAST_HOME`, or the platform's place for data of programs."""
    if chosen := environment.get("HOLDFAST_HOME"):
        return Path(chosen).expanduser()
    if platform == "darwin":
        return user_home / "Library" / "Application Support" / "holdfast"
    data = environment.get("XDG_DATA_HOME", "")
    # The specification wants relative paths ignored.
    return (Path(data) if data.startswith("/") else user_home / ".local" / "share") / "holdfast"


_DYING_SECONDS: Final = 3.0
_PAUSE: Final = 0.02


class HomeInUse(Exception):
    """Another server has this home."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """What `server.json` says of the server that has this home."""

    url: str
    pid: int
    version: str
    started_at: int
    api_key: str | None = field(repr=False)
    """Lives as long as that server; None where no keys are asked for."""


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
        deadline = time.monotonic() + _DYING_SECONDS
        while not self._try_lock():
            running = None
            with contextlib.suppress(OSError, ValueError):
                running = read_running(self.path)
            # A child that a killed server had just forked holds the lock for as long as it takes to die, or to exec.
            if time.monotonic() < deadline and (running is None or not is_alive(running.pid)):
                time.sleep(_PAUSE)
                continue
            os.close(self._lock)
            self._lock = None
            where = f" at {running.url} (pid {running.pid})" if running else ""
            raise HomeInUse(f"a server already runs on {self.path}{where}: use it, stop it, or give another --home")
        os.umask(0o077)
        self._note.unlink(missing_ok=True)
        return self

    def _try_lock(self) -> bool:
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

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

    def node(self) -> str:
        """The name of this home among all that share a store, made on first use. Boxes belong to it."""
        path = self.path / "node"
        try:
            return path.read_text()
        except FileNotFoundError:
            name = f"n-{secrets.token_hex(6)}"
            _write_private(path, name)
            return name

    def announce(self, running: RunningServer) -> None:
        note = {
            "url": running.url,
            "pid": running.pid,
            "version": running.version,
            "startedAt": running.started_at,
            "apiKey": running.api_key,
        }
        _write_private(self._note, json.dumps(note))


def is_alive(pid: int) -> bool:
    """A dead process that nobody has waited for yet does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def read_running(home: Path) -> RunningServer | None:
    """The server that says it has this home. It may have died without taking the note back: connect to find out.

    Raises OSError or ValueError where there is a note that cannot be read.
    """
    try:
        told = json.loads((home / "server.json").read_text())
        return RunningServer(str(told["url"]), told["pid"], told["version"], told["startedAt"], told["apiKey"])
    except FileNotFoundError:
        return None
    except (LookupError, TypeError) as error:
        raise ValueError(f"it is not what a server writes ({error!r})") from None


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all, and readable by its owner alone from the first byte on."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
