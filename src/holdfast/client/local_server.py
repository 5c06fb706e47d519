"""Finds the server of a home on this machine by the file `server.json` in the home, and starts one if none runs.

For callers that need a server but have no URL: the command line, and a client or an interpreter in a script.
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
_START_SECONDS: Final = 30.0
_ENDING_SECONDS: Final = 5.0
_CONNECT_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.05
_LOG_SHOWN: Final = 600
"""Characters at the end of the log that an error message contains."""


class ServerNotStarted(Exception):
    """No server could be started. `hint` is what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The content of `server.json`: the server that uses this home."""

    url: str
    pid: int
    version: str
    started_at: int
    api_key: str | None = field(repr=False)
    """Valid as long as that server runs. None if the server needs no keys."""


def default_home(environment: Mapping[str, str], platform: str, user_home: Path) -> Path:
    """Returns `HOLDFAST_HOME`, or a folder where the platform keeps data of programs."""
    if chosen := environment.get("HOLDFAST_HOME"):
        return Path(chosen).expanduser()
    if platform == "darwin":
        return user_home / "Library" / "Application Support" / "holdfast"
    data = environment.get("XDG_DATA_HOME", "")
    # The XDG specification says to ignore relative paths.
    return (Path(data) if data.startswith("/") else user_home / ".local" / "share") / "holdfast"


def is_alive(pid: int) -> bool:
    """Returns whether a process runs. A zombie does not."""
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
    """Returns the server named in `server.json`. It may have died without removing the file: connect to find out.

    Raises OSError or ValueError if the file cannot be read.
    """
    try:
        note = json.loads((home / "server.json").read_text())
        return RunningServer(str(note["url"]), note["pid"], note["version"], note["startedAt"], note["apiKey"])
    except FileNotFoundError:
        return None
    except (LookupError, TypeError) as error:
        raise ValueError(f"it is not what a server writes ({error!r})") from None


class NoServer(Exception):
    """The caller named no server, and none runs on the home."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server, and the credential to send to it."""

    url: str
    api_key: str | None = field(repr=False)
    home: Path | None
    """The home in which the address was found, if it was found in one."""


def choose_server(
    url: str | None, api_key: str | None, home: Path | None, environment: Mapping[str, str], default: Path
) -> ServerAddress:
    """Returns the server to use: `url`, else that of `home`, else `HOLDFAST_URL`, else that of the default home.

    The credential is chosen in the same order. The key in a `server.json` is only ever sent to that server. Raises
    `NoServer`, or OSError or ValueError if `server.json` cannot be read.
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
    """Returns the current URL and key of a home's server. Pass it to a client as `find_again`: after a restart, the
    server has another key and perhaps another port.
    """

    home: Path

    async def __call__(self) -> tuple[str, str | None] | None:
        try:
            running = read_running(self.home)
        except (OSError, ValueError):
            return None
        return None if running is None else (running.url, running.api_key)


def is_taken(home: Path) -> bool:
    """Returns whether a server uses this home now.

    It checks the lock, because a killed server leaves its `server.json` behind, and another process may have its
    address and process id by now.
    """
    import fcntl  # not on every system that a client runs on

    try:
        lock = os.open(home / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True  # it belongs to another user, so we cannot tell
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def find_running(home: Path) -> RunningServer | None:
    """Returns the server of a home, even if it does not answer."""
    try:
        running = read_running(home)
    except (OSError, ValueError):
        return None  # a caller that goes on to use the file gets the error
    return running if running is not None and is_taken(home) else None


def find_answering(home: Path) -> RunningServer | None:
    """Returns the server of a home if it accepts connections."""
    running = find_running(home)
    return running if running is not None and _answers(running.url) else None


def find_or_start(home: Path) -> tuple[RunningServer, bool]:
    """Returns the server of a home, and whether this call started it. Raises `ServerNotStarted`. Blocks."""
    running = find_answering(home)
    if running is not None:
        return running, False
    if _is_free(DEFAULT_PORT):
        try:
            return start_server(home, DEFAULT_PORT)
        except ServerNotStarted:
            if _is_free(DEFAULT_PORT):
                raise
            # Another program has taken the port meanwhile.
    return start_server(home, 0)


def find_or_start_anywhere(home: Path) -> tuple[RunningServer, bool]:
    """Like `find_or_start`, for a server that is stopped again soon: it listens on any port, whatever is configured."""
    running = find_answering(home)
    return (running, False) if running is not None else start_server(home, 0, even_if_configured=True)


def start_server(home: Path, port: int, *, even_if_configured: bool = False) -> tuple[RunningServer, bool]:
    """Start a server that outlives this process, with its log in the home. `port` counts if none is configured.

    Returns it and True. If another process started one at the same time, returns that one and False. Raises
    `ServerNotStarted`. Blocks.
    """
    import subprocess  # here: most callers find a running server

    log = home / "server.log"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ServerNotStarted(
            f"cannot use the home {home}: {error.strerror or error}", "choose another with --home DIR"
        ) from None
    command = [sys.executable, "-P", "-m", "holdfast", "up", "--json", "--home", str(home)]
    command += ["--port" if even_if_configured else "--default-port", str(port)]
    command.append("--no-first-key")  # nobody would see it here; the next server that a person starts prints it
    with os.fdopen(descriptor, "ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, cwd="/"
        )
    assert process.stdout is not None
    # The server prints its first line once it accepts connections.
    deadline = time.monotonic() + _START_SECONDS
    with process.stdout as output:
        line = _first_line(output.fileno(), deadline)
    if not line:
        is_late = time.monotonic() >= deadline
        if is_late:
            process.terminate()
        code = _wait_or_kill(process)
        running = _wait_for_other(home, deadline)
        if running is not None:
            return running, False
        why = "did not answer in time" if is_late else f"exited at once (exit code {code})"
        raise ServerNotStarted(
            f"the server of {home} {why}: {_end_of(log)}", f"run holdfast up --home {home} to see what is wrong"
        )
    process.returncode = 0  # it outlives us, so Popen must not warn that it still runs
    printed = json.loads(line)
    started = read_running(home)
    return started or RunningServer(str(printed["url"]), int(printed["pid"]), str(printed["version"]), 0, None), True


def _wait_for_other(home: Path, deadline: float) -> RunningServer | None:
    """Returns the server that another process started. It locks the home before it answers, so wait for that."""
    while True:
        running = find_answering(home)
        if running is not None or not is_taken(home) or time.monotonic() >= deadline:
            return running
        time.sleep(_POLL_SECONDS)


def _wait_or_kill(process: subprocess.Popen[bytes]) -> int:
    import subprocess

    try:
        return process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _first_line(descriptor: int, deadline: float) -> bytes:
    import select

    received = b""
    while b"\n" not in received:
        readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        piece = os.read(descriptor, 4096) if readable else b""
        if not piece:
            return b""
        received += piece
    return received.partition(b"\n")[0]


def _end_of(log: Path) -> str:
    try:
        return log.read_text(errors="replace").strip()[-_LOG_SHOWN:]
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
