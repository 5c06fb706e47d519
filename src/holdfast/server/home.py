"""The home folder: its lock, the name of its node, and the file by which the CLI finds the server."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.client.local_server import RunningServer, is_alive, read_running
from holdfast.private_file import write_private

_DYING_SECONDS: Final = 3.0
_LOOKING_SECONDS: Final = 0.1
"""How long to wait for a process that holds the lock only to check whether the home is in use."""
_PAUSE: Final = 0.02
_NOTE_BYTES: Final = 2048
"""At least as long as the note, and within one block of every file system."""


class HomeInUse(Exception):
    """Another server uses this home."""


class Home:
    """A folder that only its user can read. The context manager holds its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._note = path / "server.json"
        self._spare = path / "server.json.spare"
        """Becomes the note on a full disk: its block is ours already, and no other program can take it."""
        self._lock: int | None = None
        self._umask = 0

    def __enter__(self) -> Home:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        began = time.monotonic()
        while not self._try_lock():
            running = None
            with contextlib.suppress(OSError, ValueError):
                running = read_running(self.path)
            # A child that a killed server has just forked holds the lock until it dies or calls exec.
            is_dead = running is None or not is_alive(running.pid)
            if time.monotonic() - began < (_DYING_SECONDS if is_dead else _LOOKING_SECONDS):
                time.sleep(_PAUSE)
                continue
            os.close(self._lock)
            self._lock = None
            where = f" at {running.url} (pid {running.pid})" if running else ""
            raise HomeInUse(f"a server is already running on {self.path}{where}")
        self._umask = os.umask(0o077)
        self._retire_note()
        return self

    def _try_lock(self) -> bool:
        assert self._lock is not None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @property
    def is_there(self) -> bool:
        """Whether the folder is still ours. It may have been deleted, moved or replaced."""
        if self._lock is None:
            return False
        try:
            return os.path.samestat(os.fstat(self._lock), (self.path / "lock").stat())
        except OSError:
            return False

    def __exit__(self, *_: object) -> None:
        if self.is_there:  # otherwise the note belongs to another server
            self._retire_note()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            os.umask(self._umask)

    def _retire_note(self) -> None:
        """Remove the note, or make it the spare file if there is none."""
        if self._spare.exists():
            self._note.unlink(missing_ok=True)
            return
        with contextlib.suppress(OSError):  # there is none, or its block cannot be used again
            self._note.replace(self._spare)
            with self._spare.open("r+b") as file:  # its key is not valid any more, but why keep it
                file.write(b" " * os.fstat(file.fileno()).st_size)

    def _keep_spare(self) -> None:
        """Make the spare file, if there is none and space for it."""
        if self._spare.exists():
            return
        with contextlib.suppress(OSError):
            write_private(self._spare, " " * _NOTE_BYTES)

    def _write_spare(self, text: str) -> bool:
        """Make the spare file the note. Returns whether there was one."""
        data = text.encode().ljust(_NOTE_BYTES)
        try:
            with self._spare.open("r+b") as file:
                file.write(data)
            self._spare.replace(self._note)
        except OSError:
            return False
        return True

    def node(self) -> str:
        """The name of this home among all that share a store, chosen on first use. Boxes belong to it."""
        path = self.path / "node"
        try:
            return path.read_text()
        except FileNotFoundError:
            name = f"n-{secrets.token_hex(6)}"
            write_private(path, name)
            return name

    def announce(self, running: RunningServer, make_room: Callable[[], bool]) -> None:
        """Write the note by which clients on this machine find the server.

        `make_room` frees some disk space and returns whether it could: reads are served on a full disk, so the server
        must be found there.
        """
        note = {
            "url": running.url,
            "pid": running.pid,
            "version": running.version,
            "startedAt": running.started_at,
            "apiKey": running.api_key,
        }
        text = json.dumps(note)
        while True:
            try:
                write_private(self._note, text)
                break
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                if self._write_spare(text):
                    break
                if not make_room():
                    raise
        self._keep_spare()
