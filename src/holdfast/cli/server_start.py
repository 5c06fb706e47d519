"""Commands that need a server and start one where none runs: in the background, said in one line, stopped by `down`."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from holdfast.cli.box_session import Where
from holdfast.cli.console import Cell, note
from holdfast.cli.discovery import the_home
from holdfast.cli.errors import CommandError
from holdfast.cli.exits import Exit
from holdfast.server.config import DEFAULT_PORT
from holdfast.server.home import RunningServer, read_running

_PATIENCE: Final = 30.0
_CONNECT_SECONDS: Final = 2.0
_SHOWN: Final = 600


def ensure_server(where: Where) -> None:
    """Start a server on the home where the command means that home and none answers there."""
    if where.server is not None or (where.home is None and os.environ.get("HOLDFAST_URL")):
        return
    home = the_home(where.home)
    if find_answering(home) is not None:
        return
    began = time.monotonic()
    running = start_server(home, DEFAULT_PORT) if _is_free(DEFAULT_PORT) else start_server(home, 0)
    option = "" if home == the_home(None) else f" --home {home}"
    took = f"  {time.monotonic() - began:.1f} s"
    note("server", running.url, Cell(f"  started in the background; holdfast down{option} stops it{took}", "dim"))


def find_answering(home: Path) -> RunningServer | None:
    """The server of a home, where it takes connections."""
    try:
        running = read_running(home)
    except (OSError, ValueError):
        return None  # the command itself says what is wrong with it
    return running if running is not None and _answers(running.url) else None


def start_server(home: Path, port: int) -> RunningServer:
    """A server that outlives this command, with its log in the home."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = home / "server.log"
    command = [sys.executable, "-P", "-m", "holdfast", "up", "--json", "--home", str(home), "--port", str(port)]
    with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, cwd="/"
        )
    assert process.stdout is not None
    # Its first line comes when it answers. It has its first key, which is not for a log.
    with process.stdout as said:
        line = _first_line(said.fileno(), time.monotonic() + _PATIENCE)
    if not line:
        ended = process.poll()
        if ended is None:
            process.terminate()
        running = find_answering(home)
        if running is not None:
            return running  # somebody else was quicker
        why = "did not answer in time" if ended is None else f"ended at once (exit code {ended})"
        raise CommandError(
            f"the server of {home} {why}: {_end_of(log)}",
            next_step=f"holdfast up --home {home} shows what is wrong",
            exit=Exit.UNREACHABLE,
        )
    told = json.loads(line)
    process.returncode = 0  # it goes on without us: nothing is to wait for it when this object ends
    return RunningServer(str(told["url"]), int(told["pid"]), str(told["version"]), 0, None)


def _first_line(descriptor: int, deadline: float) -> bytes:
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
