"""A shell whose commands run one after another, each with output of its own.

Reads requests from standard input, a line of JSON each:
    {"op": "run", "id": "...", "command": "...", "echo": true}
    {"op": "input", "id": "...", "data": "..."}
    {"op": "close"}     ends the session, and the command that is running
    {"op": "retire"}    ends the session, unless a command is running
Writes frames to standard output: a line of JSON, and as many bytes as its "n" says:
    {"c": id, "t": "run", "n": 9}      the command itself; it begins
    {"c": id, "t": "out"|"err", "n": 5}
    {"c": id, "t": "exit", "code": 0, "last": false, "n": 0}    "last": the shell ended with it
    {"c": "", "t": "busy", "n": 0}     the session does not retire
    {"c": "", "t": "end", "n": 0}      the shell has ended; the session stays until it is killed
What it wrote tells all about a session, so no server has to remember anything.

What a command leaves in the background when it ends outlives the session: it runs as long as the box does.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from typing import Any

CHUNK = 65536
GRACE = 5.0
"""Seconds that a running command has to end itself when its session is closed."""


class Command:
    def __init__(self, id: str, text: str, echo: bool) -> None:
        self.id = id
        self.text = text
        self.echo = echo
        self.code: int | None = None
        self.stdin: int | None = None
        self.streams: dict[str, tuple[int, int | None]] = {}


class Session:
    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix=".daytona-session-", dir="/tmp")
        self.selector = selectors.DefaultSelector()
        self.commands: dict[str, Command] = {}
        self.running: Command | None = None
        self.waiting: list[Command] = []
        self.older: set[int] = set()
        """The processes that were there before the running command."""
        self.pending = b""
        self.status_read, self.status_write = os.pipe()
        os.set_blocking(self.status_read, False)
        self.statuses = b""
        self.exit_code: int | None = None
        shell = shutil.which("bash") or "/bin/sh"
        status = self.status_write
        self.shell = subprocess.Popen(
            [shell], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(status,)
        )
        os.close(self.status_write)
        self.status = status

    def serve(self) -> None:
        os.set_blocking(0, False)
        self.selector.register(0, selectors.EVENT_READ, self.read_requests)
        self.selector.register(self.status_read, selectors.EVENT_READ, self.read_statuses)
        while True:
            for key, _ in self.selector.select():
                key.data()

    # --- requests ---

    def read_requests(self) -> None:
        data = read(0)
        if data is None:
            return
        if not data:
            self.selector.unregister(0)
            return
        self.pending += data
        *lines, self.pending = self.pending.split(b"\n")
        for line in lines:
            if line:
                request = json.loads(line)
                getattr(self, "on_" + request["op"])(request)

    def on_run(self, request: dict[str, Any]) -> None:
        command = Command(request["id"], request["command"], request["echo"])
        if self.exit_code is not None:
            frame(command.id, "run", encoded(command.text))
            frame(command.id, "exit", b"", code=self.exit_code, last=True)
            return
        self.commands[command.id] = command
        place = os.path.join(self.folder, command.id)
        os.mkdir(place)
        with open(os.path.join(place, "command"), "wb") as file:
            file.write(encoded(command.text) + b"\n")
        for name in ("in", "out", "err"):
            os.mkfifo(os.path.join(place, name))
        # Opened both ways: then neither side waits for the other, and a command sees no end of its input.
        command.stdin = os.open(os.path.join(place, "in"), os.O_RDWR | os.O_NONBLOCK)
        for name in ("out", "err"):
            end = os.open(os.path.join(place, name), os.O_RDONLY | os.O_NONBLOCK)
            keep = os.open(os.path.join(place, name), os.O_WRONLY | os.O_NONBLOCK)
            command.streams[name] = (end, keep)
            self.selector.register(end, selectors.EVENT_READ, lambda name=name: self.forward(command, name))
        frame(command.id, "run", encoded(command.text))
        if self.running is None:
            self.begin(command)
        else:
            self.waiting.append(command)

    def begin(self, command: Command) -> None:
        """Give a command to the shell, which has none."""
        self.running = command
        self.older = processes()
        place = os.path.join(self.folder, command.id)
        line = "command . '{0}/command' <'{0}/in' >'{0}/out' 2>'{0}/err' {2}>&-; printf '%s %s\\n' '{1}' \"$?\" >&{2}\n"
        assert self.shell.stdin is not None
        try:
            self.shell.stdin.write(line.format(place, command.id, self.status).encode())
            self.shell.stdin.flush()
        except BrokenPipeError:
            pass  # the shell has just ended: `end` will finish the command

    def on_input(self, request: dict[str, Any]) -> None:
        command = self.commands.get(request["id"])
        if command is None or command.stdin is None:
            return
        data = encoded(request["data"])
        if not data.endswith(b"\n"):
            data += b"\n"
        if command.echo:
            frame(command.id, "out", data)
        while data:
            try:
                data = data[os.write(command.stdin, data[:4096]) :]
            except BlockingIOError:
                return  # it reads nothing: the rest is dropped, and nobody waits

    def on_retire(self, request: dict[str, Any]) -> None:
        if self.running is not None:
            frame("", "busy", b"")
        else:
            self.on_close(request)

    def on_close(self, request: dict[str, Any]) -> None:
        if self.running is not None:
            self.end_running()
        assert self.shell.stdin is not None
        try:
            self.shell.stdin.close()
            self.shell.wait(GRACE)
        except (OSError, subprocess.TimeoutExpired):
            self.shell.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        streams = [each for command in self.commands.values() for each in command.streams.values()]
        for _, keep in streams:
            if keep is not None:
                os.close(keep)
        read_for_nobody([end for end, _ in streams])
        raise SystemExit

    def end_running(self) -> None:
        """End the shell and what the running command started: first by asking, after a while by force."""
        begun = time.monotonic()
        asked: set[int] = set()
        while time.monotonic() < begun + 2 * GRACE:
            self.shell.poll()
            left = started_by(self.shell.pid, self.older, parents_and_groups())
            if not left:
                return
            if time.monotonic() < begun + GRACE:
                send(left - asked, signal.SIGTERM, signal.SIGCONT)
                asked |= left
            else:
                send(left, signal.SIGKILL)
            time.sleep(0.01)

    # --- what commands do ---

    def forward(self, command: Command, name: str) -> bool:
        """Returns whether there was anything."""
        if name not in command.streams:
            return False
        data = read(command.streams[name][0])
        if data:
            frame(command.id, name, data)
            return True
        if data == b"":
            self.close(command, name)
        return False

    def close(self, command: Command, name: str) -> None:
        end, keep = command.streams.pop(name)
        self.selector.unregister(end)
        os.close(end)
        if keep is not None:
            os.close(keep)

    def read_statuses(self) -> None:
        data = read(self.status_read)
        if data is None:
            return
        if not data:
            self.end()
            return
        self.statuses += data
        *lines, self.statuses = self.statuses.split(b"\n")
        for line in lines:
            id, _, code = line.decode().partition(" ")
            if id in self.commands:
                self.finish(self.commands[id], int(code))

    def finish(self, command: Command, code: int) -> None:
        if command.code is not None:
            return
        command.code = code
        for name in list(command.streams):
            while self.forward(command, name):
                pass
            if name in command.streams:
                # What it left running in the background may go on writing. Its end is seen once ours is closed.
                end, keep = command.streams[name]
                if keep is not None:
                    os.close(keep)
                command.streams[name] = (end, None)
        if command.stdin is not None:
            os.close(command.stdin)
            command.stdin = None
        shutil.rmtree(os.path.join(self.folder, command.id), ignore_errors=True)
        frame(command.id, "exit", b"", code=code, last=self.exit_code is not None)
        if command is self.running:
            self.running = None
            if self.waiting and self.exit_code is None:
                self.begin(self.waiting.pop(0))

    def end(self) -> None:
        """The shell has ended. Whatever it was doing ends with its code."""
        code = self.shell.wait()
        self.exit_code = code if code >= 0 else 128 - code
        self.waiting.clear()
        for command in list(self.commands.values()):
            self.finish(command, self.exit_code)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.selector.unregister(self.status_read)
        frame("", "end", b"")


def processes() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def parents_and_groups() -> dict[int, tuple[int, int]]:
    """The parent and the process group of each process. Zombies are left out."""
    found: dict[int, tuple[int, int]] = {}
    for pid in processes():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split(None, 3)
        except OSError:
            continue  # it has just ended
        if len(fields) == 4 and fields[0] not in (b"Z", b"X"):
            found[pid] = (int(fields[1]), int(fields[2]))
    return found


def started_by(shell: int, older: set[int], table: dict[int, tuple[int, int]]) -> set[int]:
    """The shell, and what its running command started: whatever is below it, or left it but stayed in its group.

    `older` processes were there before the command. They are left alone, and so is what they start.
    """
    own, group = os.getpid(), os.getpgrp()
    above = {own}  # one of these adopts orphans
    at = own
    while (at := table.get(at, (0, 0))[0]) in table and at not in above:
        above.add(at)

    def is_meant(pid: int) -> bool:
        at, passed = pid, set()
        while at != shell and at not in above:
            if at in older or at in passed or at not in table:
                return False
            passed.add(at)
            at = table[at][0]
        return at == shell or (pid not in above and table[pid][1] == group)

    return {pid for pid in table if is_meant(pid)}


def send(processes: set[int], *numbers: int) -> None:
    for pid in sorted(processes):  # parents first: a shell whose command has ended would go on with the next one
        for number in numbers:
            try:
                os.kill(pid, number)
            except (ProcessLookupError, PermissionError):
                pass


def read_for_nobody(pipes: list[int]) -> None:
    """Go on reading what processes in the background print, in a process of its own, until they end. If nobody had
    it open, their next line would end them.
    """
    pipes = [each for each in pipes if read(each) != b""]
    if not pipes or os.fork():
        return
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for each in (0, 1, 2):
            os.dup2(nowhere, each)
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    if read(key.fd) == b"":
                        selector.unregister(key.fd)
    finally:
        os._exit(0)


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def read(descriptor: int) -> bytes | None:
    """Returns the next bytes, none at the end, or None if there are none yet."""
    try:
        return os.read(descriptor, CHUNK)
    except BlockingIOError:
        return None


def frame(id: str, kind: str, data: bytes, **more: int) -> None:
    head: dict[str, Any] = {"c": id, "t": kind, "n": len(data), **more}
    whole = json.dumps(head).encode() + b"\n" + data
    while whole:
        whole = whole[os.write(1, whole) :]


signal.signal(signal.SIGPIPE, signal.SIG_IGN)
Session().serve()
