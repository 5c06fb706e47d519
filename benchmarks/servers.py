"""Starts and stops the two servers that are compared, and asks the kernel what they use. Linux only."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

BENCHMARKS: Final = Path(__file__).resolve().parent
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.002


class CannotMeasure(Exception):
    """The benchmark cannot run as asked. The message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers. Owned by the `with` block that started it."""

    process: subprocess.Popen[bytes]
    port: int
    folder: Path
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def cpu_seconds(self) -> float:
        """Processor time of all its threads so far."""
        return cpu_seconds(self.pid)

    def memory(self) -> tuple[float, float]:
        """Resident memory now and at its peak, in MB (10^6 bytes)."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        kilobytes = {
            name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines) if "kB" in value
        }
        return kilobytes["VmRSS"] * 1024 / 1e6, kilobytes["VmHWM"] * 1024 / 1e6

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise CannotMeasure(
                f"the server did not stop within {_STOP_SECONDS:.0f} s: {_last_lines(self.log)}"
            ) from None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def machine_cpu_seconds() -> float:
    """Processor time that everything on this machine has used so far, waiting and idling left out."""
    user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft_interrupts) / _TICKS


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two that are compared: how its server is started on a folder and a port."""

    name: str
    command: Callable[[Path, int], list[str]]
    durability: str
    """What it has done when it acknowledges an append."""
    version: str

    def spawn(self, folder: Path, port: int) -> Server:
        """Start the server's process, without waiting for it to answer."""
        folder.mkdir(parents=True, exist_ok=True)
        log = folder.parent / f"{folder.name}.log"
        # As bin/holdfast does: compiled modules are kept, whatever the caller's own settings.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(folder, port), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
        return Server(process, port, folder, log)

    @contextmanager
    def serve(self, folder: Path) -> Iterator[Server]:
        """A server on this folder for the time of the block."""
        server = self.spawn(folder, free_port())
        try:
            wait_for_port(server)
            yield server
            server.stop()
        except Exception as error:
            # The log goes with the folder.
            error.add_note(f"the end of the log of {self.name}:\n{_last_lines(server.log)}")
            raise
        finally:
            if server.process.poll() is None:
                server.kill()

    @contextmanager
    def serve_fresh(self, parent: Path) -> Iterator[Server]:
        """A server on a new, empty folder, which is removed afterwards."""
        with (
            tempfile.TemporaryDirectory(prefix=f"{self.name}-", dir=parent) as folder,
            self.serve(Path(folder) / "data") as server,
        ):
            yield server


def reference(node: str) -> Side:
    return Side(
        name="reference",
        command=lambda folder, port: [node, str(BENCHMARKS / "reference.mjs"), str(port), str(folder)],
        durability="a write and an fdatasync of the stream's own file, then a put to LMDB",
        version=_reference_version(),
    )


def ours(command: list[str] | None = None) -> Side:
    """Holdfast, by its own command line or by another command with {home} and {port} in it."""
    parts = command or [
        *(sys.executable, "-m", "holdfast", "up", "--home", "{home}", "--port", "{port}", "--no-auth"),
        *("--long-poll-timeout", "600"),
    ]
    import holdfast

    return Side(
        name="holdfast",
        command=lambda folder, port: [part.format(home=folder, port=port) for part in parts],
        durability="the commit, with synchronous=FULL, of an SQLite transaction that all waiting appends share",
        version=holdfast.__version__,
    )


def find_node() -> str:
    """The node of the environment that runs this, else the user's."""
    beside = Path(sys.executable).parent / "node"
    node = str(beside) if beside.exists() else shutil.which("node")
    if node is None:
        raise CannotMeasure(
            "there is no node: run this with the Python of the development environment (see docs/benchmarks.md)"
        )
    return node


def install_reference(node: str) -> None:
    """Install the reference server from the lock file, unless that has been done."""
    lock, installed = BENCHMARKS / "package-lock.json", BENCHMARKS / "node_modules" / ".installed-lock.json"
    if installed.exists() and installed.read_bytes() == lock.read_bytes():
        return
    print("installing the reference server", file=sys.stderr)
    environment = {**os.environ, "PATH": f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    command = [node, str(Path(node).parent / "npm"), "ci", "--ignore-scripts"]
    done = subprocess.run(
        command, cwd=BENCHMARKS, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        raise CannotMeasure(
            f"the reference server could not be installed (npm ci in {BENCHMARKS}):\n{done.stderr[-2000:]}"
        )
    shutil.copy(lock, installed)


def _reference_version() -> str:
    lock = json.loads((BENCHMARKS / "package-lock.json").read_text())
    return str(lock["packages"]["node_modules/@durable-streams/server"]["version"])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(server: Server) -> None:
    """Wait until something listens on the server's port."""
    _poll(server, lambda: _listens(server.port))


def wait_for_answer(server: Server, target: str) -> None:
    """Wait until a GET of this target is answered with 200."""
    _poll(server, lambda: _answers(server.port, target))


def _poll(server: Server, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        if server.process.poll() is not None:
            raise CannotMeasure(f"the server ended with {server.process.returncode}: {_last_lines(server.log)}")
        if time.monotonic() > deadline:
            raise CannotMeasure(f"the server does not answer after {_START_SECONDS:.0f} s: {_last_lines(server.log)}")
        time.sleep(_POLL_SECONDS)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _answers(port: int, target: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_SECONDS)
    try:
        connection.request("GET", target)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _last_lines(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
