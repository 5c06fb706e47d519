"""The server of a home on this machine: the note it leaves there, whether it answers, and starting one that outlives
who asked for it. For whoever needs a server and was given none: the command line, and a client or an interpreter in a
script.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import subprocess

DEFAULT_PORT: Final = 8484
_PATIENCE: Final = 30.0
_ENDING_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 2.0
_PAUSE: Final = 0.05
_SHOWN: Final = 600


class ServerNotStarted(Exception):
    """No server could be started. The message says why; `hint` what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class RunningServer:
    """What `server.json` says of the server that has this home."""

    url: str
    pid: int
    version: str
    started_at: int
    api_key: str | None = field(repr=False)
    """Lives as long as that server; None where no keys are asked for."""


def default_home(environment: Mapping[str, str], platform: str, user_home: Path) -> Path:
    """`HOLDFAST_HOME`, or the platform's place for data of programs."""
    if chosen := environment.get("HOLDFAST_HOME"):
        return Path(chosen).expanduser()
    if platform == "darwin":
        return user_home / "Library" / "Application Support" / "holdfast"
    data = environment.get("XDG_DATA_HOME", "")
    # The specification wants relative paths ignored.
    return (Path(data) if data.startswith("/") else user_home / ".local" / "share") / "holdfast"


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


class NoServer(Exception):
    """No server is named, and none runs on the home. The message says on which."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server to talk to, and the credential it gets."""

    url: str
    api_key: str | None = field(repr=False)
    home: Path | None
    """Whose server it is, where that was read in a home."""


def choose_server(
    url: str | None, api_key: str | None, home: Path | None, environment: Mapping[str, str], default: Path
) -> ServerAddress:
    """The URL, then the home, then `HOLDFAST_URL`, then the home by default; and likewise for the credential.

    The key of a running server is used for that server only: no other URL ever gets it. Raises `NoServer`; OSError or
    ValueError where there is a note that cannot be read.
    """
    api_key = api_key or environment.get("HOLDFAST_API_KEY")
    url = url or (environment.get("HOLDFAST_URL") if home is None else None)
    folder = home or default
    if url is not None and api_key is not None:
        return ServerAddress(url, api_key, None)
    running = read_running(folder)
    if url is not None:
        same = running is not None and running.url.rstrip("/") == url.rstrip("/")
        return ServerAddress(url, running.api_key if running is not None and same else None, None)
    if running is None:
        raise NoServer(f"no server runs on {folder}")
    return ServerAddress(running.url, api_key or running.api_key, folder)


@dataclass(frozen=True, slots=True)
class HomeAddress:
    """Where the server of a home is now, and with which key. For clients that found both there, as their `find_again`:
    the next server of the home has another key, and perhaps another port."""

    home: Path

    async def __call__(self) -> tuple[str, str | None] | None:
        try:
            running = read_running(self.home)
        except (OSError, ValueError):
            return None
        return None if running is None else (running.url, running.api_key)


def is_taken(home: Path) -> bool:
    """Whether a server has this home now. One that was killed leaves its note, and its address and process id may be
    somebody else's since; its lock is gone with it."""
    import fcntl  # not on every system that a client runs on

    try:
        lock = os.open(home / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's: nobody can tell
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def find_running(home: Path) -> RunningServer | None:
    """The server of a home, whether it answers or not."""
    try:
        running = read_running(home)
    except (OSError, ValueError):
        return None  # who goes on to use it is told what is wrong with it
    return running if running is not None and is_taken(home) else None


def find_answering(home: Path) -> RunningServer | None:
    """The server of a home, where it takes connections."""
    running = find_running(home)
    return running if running is not None and _answers(running.url) else None


def find_or_start(home: Path) -> tuple[RunningServer, bool]:
    """The server of a home, and whether it was started just now. Raises `ServerNotStarted`. Blocks."""
    running = find_answering(home)
    if running is not None:
        return running, False
    if _is_free(DEFAULT_PORT):
        try:
            return start_server(home, DEFAULT_PORT)
        except ServerNotStarted:
            if _is_free(DEFAULT_PORT):
                raise
            # Another program was quicker.
    return start_server(home, 0)


def start_server(home: Path, port: int) -> tuple[RunningServer, bool]:
    """A server that outlives who starts it, with its log in the home; or that of somebody who was quicker, and False.

    Raises `ServerNotStarted`. Blocks.
    """
    import subprocess  # here: most callers find a server that runs

    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = home / "server.log"
    command = [sys.executable, "-P", "-m", "holdfast", "up", "--json", "--home", str(home), "--port", str(port)]
    command.append("--no-first-key")  # nobody would see it: the next one to start a server by hand gets it
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, cwd="/"
        )
    assert process.stdout is not None
    # Its first line comes when it answers.
    deadline = time.monotonic() + _PATIENCE
    with process.stdout as said:
        line = _first_line(said.fileno(), deadline)
    if not line:
        is_late = time.monotonic() >= deadline
        code = _end(process, at_once=is_late)
        running = _wait_for_other(home, deadline)
        if running is not None:
            return running, False
        why = "did not answer in time" if is_late else f"ended at once (exit code {code})"
        raise ServerNotStarted(
            f"the server of {home} {why}: {_end_of(log)}", f"holdfast up --home {home} shows what is wrong"
        )
    process.returncode = 0  # it goes on without us: nothing is to wait for it when this object ends
    told = json.loads(line)
    started = read_running(home)
    return started or RunningServer(str(told["url"]), int(told["pid"]), str(told["version"]), 0, None), True


def _wait_for_other(home: Path, deadline: float) -> RunningServer | None:
    """The server of somebody who was quicker: it has the home before it answers."""
    while True:
        running = find_answering(home)
        if running is not None or not is_taken(home) or time.monotonic() >= deadline:
            return running
        time.sleep(_PAUSE)


def _end(process: subprocess.Popen[bytes], *, at_once: bool) -> int:
    import subprocess

    if at_once:
        process.terminate()
    try:
        return process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _first_line(descriptor: int, deadline: float) -> bytes:
    import select

    heard = b""
    while b"\n" not in heard:
        readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(descriptor, 4096) if readable else b""
        if not piece:
            return b""
        heard += piece
    return heard.partition(b"\n")[0]


def _end_of(log: Path) -> str:
    try:
        return log.read_text(errors="replace").strip()[-_SHOWN:]
    except OSError:
        return "its log cannot be read"


def _answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), _CONNECT_SECONDS):
            return True
    except OSError:
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
