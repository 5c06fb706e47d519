"""Forks the servers of tests from an interpreter that has imported everything.

Importing takes longer than most tests. So one process does it for a whole test process, and every `ServerProcess` is a
fork of it. A server that runs inside another command gets its own interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

_PROGRAM: Final = ("-P", "-m", "holdfast.testing.server")
_END_SECONDS: Final = 30.0
_REQUEST_BYTES: Final = 1 << 20


class _Process(Protocol):
    """The part of `subprocess.Popen` that a template needs."""

    def wait(self, timeout: float | None = None) -> object: ...

    def kill(self) -> None: ...


class Template:
    """A process that forks servers, one at a time. It reads a line of settings and writes words about the server.

    It exits when its standard input ends.
    """

    def __init__(self, process: _Process, stdin: int, stdout: int) -> None:
        self._process = process
        self._stdin = stdin
        self._stdout = stdout
        self._heard = b""

    def tell(self, line: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has exited, which the caller notices when it listens
            os.write(self._stdin, line.encode() + b"\n")

    def listen(self, deadline: float) -> str:
        """Returns the next line from the template or its server, or nothing if it exited or the deadline passed."""
        while b"\n" not in self._heard:
            readable, _, _ = select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))
            said = os.read(self._stdout, 4096) if readable else b""
            if not said:
                return ""
            self._heard += said
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        # A server that is still running stops when it notices that the pipe is closed.
        os.close(self._stdin)
        _end(self._process)
        os.close(self._stdout)


def start_template(command: Sequence[str], log: Path) -> Template:
    """Start a template that logs errors to `log`. With a command, the command starts its interpreter."""
    log.parent.mkdir(parents=True, exist_ok=True)
    their_stdin, stdin = os.pipe2(os.O_CLOEXEC)
    stdout, their_stdout = os.pipe2(os.O_CLOEXEC)
    try:
        with log.open("ab") as errors:
            theirs = (their_stdin, their_stdout, errors.fileno())
            if command or sys.platform != "linux":
                return Template(_start_interpreter(command, theirs), stdin, stdout)
            return Template(_shared.fork(theirs), stdin, stdout)
    finally:
        os.close(their_stdin)
        os.close(their_stdout)


def _start_interpreter(command: Sequence[str], streams: tuple[int, int, int]) -> subprocess.Popen[bytes]:
    stdin, stdout, stderr = streams
    return subprocess.Popen(
        [*command, sys.executable, *_PROGRAM], stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
    )


class _Fork:
    """A process that the fork server started, with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> None:
        if not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("a fork", timeout or 0.0)
        os.close(self._descriptor)

    def kill(self) -> None:
        signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)


class _ForkServer:
    """The interpreter that this process forks templates from. It starts on first use, and exits with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._owner = 0

    def fork(self, streams: tuple[int, int, int]) -> _Fork:
        """Start a template with these standard streams, in the current folder and environment."""
        request = json.dumps({"environment": dict(os.environ), "folder": str(Path.cwd())}).encode()
        with self._lock:
            if self._started is None or self._owner != os.getpid():  # a fork of this process has none
                self._started, self._owner = self._start(streams[2]), os.getpid()
            control = self._started[1]
            with contextlib.suppress(ConnectionError):
                socket.send_fds(control, [request], streams)
                if answer := control.recv(64):
                    return _Fork(int(answer))
            self._started = None
        raise RuntimeError("the process that forks test servers has exited: the server's log may tell why")

    def _start(self, stderr: int) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, *_PROGRAM, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        atexit.register(self._close, os.getpid(), process, ours)
        return process, ours

    @staticmethod
    def _close(owner: int, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        if owner == os.getpid():
            control.close()
            _end(process)


_shared: Final = _ForkServer()


def _end(process: _Process) -> None:
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# --- in the fork server ---


def forks(descriptor: int) -> Iterator[None]:
    """Fork a template for each request on this socket. Yields once in each template, and never in this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing here waits for them
    with socket.socket(fileno=descriptor) as control:
        while True:
            request, streams, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 3)
            if not request:
                return
            pid = os.fork()
            if not pid:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _become(json.loads(request), streams)
                yield
                return
            for each in streams:
                os.close(each)
            control.send(str(pid).encode())


def leave() -> NoReturn:
    """End a fork that has done its work.

    Python would first take apart everything that is loaded, in memory that the fork has to copy for that. It takes
    longer than most servers of tests work. Whether a server ends in the usual way too, the tests of `holdfast up` see.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _become(told: dict[str, Any], streams: Sequence[int]) -> None:
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    os.environ.clear()
    os.environ.update(told["environment"])
    os.chdir(told["folder"])
